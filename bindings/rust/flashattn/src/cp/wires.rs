//! What the library calls of a rank.

use std::any::Any;
use std::collections::HashMap;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use super::{Arrival, Failure, Incoming, Outgoing, Transport};
use crate::sys::{self, cp::*};

/// The transport, and what is under way. Tickets are ours, since no two groups under way may have one: each has the transport's number, and
/// where its messages go.
pub(super) struct Wires {
    transport: Box<dyn Transport + Send>,
    tickets: u64,
    receiving: HashMap<u64, (u64, Vec<fa_cp_message_t>)>,
    pub(super) panic: Option<Box<dyn Any + Send>>,
}

impl Wires {
    pub(super) fn new(transport: impl Transport + Send + 'static) -> Self {
        Wires { transport: Box::new(transport), tickets: 0, receiving: HashMap::new(), panic: None }
    }

    /// A panic must not unwind into C: it goes on when the library has returned.
    fn guarded(&mut self, call: impl FnOnce(&mut Self) -> std::result::Result<(), Failure>) -> i32 {
        match catch_unwind(AssertUnwindSafe(|| call(self))) {
            Ok(Ok(())) => sys::FA_OK,
            Ok(Err(Failure::TimedOut)) => sys::FA_TIMEOUT,
            Ok(Err(Failure::OutOfMemory)) => sys::FA_OUT_OF_MEMORY,
            Ok(Err(Failure::PeerFailed)) => sys::FA_PEER_FAILED,
            Err(panic) => {
                self.panic = Some(panic);
                sys::FA_PEER_FAILED
            }
        }
    }
}

/// # Safety
/// `data` is readable for so many bytes, if there are any.
unsafe fn slice_of<'a, T>(data: *const T, n: usize) -> &'a [T] {
    match n {
        0 => &[],
        n => std::slice::from_raw_parts(data, n),
    }
}

/// # Safety
/// `user` is the wires of a live object; `messages` has `count` entries, whose memory is the library's.
pub(super) unsafe extern "C" fn on_start(user: *mut c_void, messages: *const fa_cp_message_t, count: i64, ticket: *mut u64) -> i32 {
    let wires = &mut *(user as *mut Wires);
    let messages = slice_of(messages, count as usize);
    let (sent, received): (Vec<_>, Vec<_>) = messages.iter().copied().partition(|m| m.direction == FA_CP_SEND);
    let outgoing = |m: &fa_cp_message_t| Outgoing {
        peer: m.peer as usize,
        tag: m.tag,
        bytes: slice_of(m.data as *const u8, m.bytes as usize),
    };
    let incoming = |m: &fa_cp_message_t| Incoming { peer: m.peer as usize, tag: m.tag, bytes: m.bytes as usize };
    wires.guarded(|wires| {
        let outgoing: Vec<_> = sent.iter().map(outgoing).collect();
        let incoming: Vec<_> = received.iter().map(incoming).collect();
        let group = wires.transport.start(&outgoing, &incoming)?;
        wires.tickets += 1;
        wires.receiving.insert(wires.tickets, (group, received));
        *ticket = wires.tickets;
        Ok(())
    })
}

/// # Safety
/// `user` is the wires of a live object; what was to be received is the library's memory until this has returned `FA_OK`.
pub(super) unsafe extern "C" fn on_wait(user: *mut c_void, ticket: u64, timeout_ms: i64) -> i32 {
    let wires = &mut *(user as *mut Wires);
    let arrival = |m: &fa_cp_message_t| Arrival {
        peer: m.peer as usize,
        tag: m.tag,
        bytes: match m.bytes {
            0 => &mut [],
            n => std::slice::from_raw_parts_mut(m.data as *mut u8, n as usize),
        },
    };
    let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    wires.guarded(|wires| {
        let (group, received) = wires.receiving.remove(&ticket).ok_or(Failure::PeerFailed)?;
        let mut arrivals: Vec<_> = received.iter().map(arrival).collect();
        wires.transport.wait(group, &mut arrivals, limit)
    })
}

/// # Safety
/// `user` is the wires of a live object. Nobody touches the library's memory outside of a wait.
pub(super) unsafe extern "C" fn on_abandon(user: *mut c_void) {
    (*(user as *mut Wires)).receiving.clear();
}
