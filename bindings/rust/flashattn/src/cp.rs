//! One attention over several ranks: processes, or threads with a [`ContextParallel`] each. All ranks make the same calls in the same
//! order, on tensors that hold their own rows. They exchange messages through a [`Transport`], which the program implements.
//! `flashattn_cp.h` is the manual.

use std::ffi::CStr;
use std::panic::resume_unwind;
use std::ptr;
use std::time::Duration;

mod wires;

use self::wires::{on_abandon, on_start, on_wait, Wires};
use crate::calls::size;
use crate::error::{invalid, Error};
use crate::helpers::room;
use crate::pinned::Pinned;
use crate::sys::{self, cp::*};
use crate::{Attention, Backward, Forward, Handle, Inputs, OpenHandle, Result};

/// Why a message failed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer did not answer within the time limit.
    TimedOut,
    /// The peer or the transport failed, or the message has another length.
    PeerFailed,
    /// There is no memory for the message.
    OutOfMemory,
}

/// A message to a peer.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The peer's rank.
    pub peer: usize,
    /// The same on both sides. Tags of messages in flight at once differ in their low 15 bits.
    pub tag: u64,
    /// The message, of at most 2^30 bytes.
    pub bytes: &'a [u8],
}

/// A message that a peer sends.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// The peer's rank.
    pub peer: usize,
    /// The sender's tag.
    pub tag: u64,
    /// Its length in bytes.
    pub bytes: usize,
}

/// Where an [`Incoming`] goes.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// The sender's rank.
    pub peer: usize,
    /// The sender's tag.
    pub tag: u64,
    /// Memory for the message, which the transport fills.
    pub bytes: &'a mut [u8],
}

/// Moves messages between ranks. Two ranks list the messages between them in the same order.
pub trait Transport {
    /// This rank, counted from 0.
    fn rank(&self) -> usize;
    /// The number of ranks.
    fn ranks(&self) -> usize;
    /// Starts a group of messages without waiting for any peer. Data to send is borrowed only during the call. Returns a ticket, which
    /// `wait` takes.
    fn start(&mut self, outgoing: &[Outgoing<'_>], incoming: &[Incoming]) -> std::result::Result<u64, Failure>;
    /// Returns when the group is done. The messages are then in `arrivals`, in the order of `incoming`. limit: `None`: no limit.
    fn wait(&mut self, group: u64, arrivals: &mut [Arrival<'_>], limit: Option<Duration>) -> std::result::Result<(), Failure>;
}

/// Which rows and keys of a sequence a rank has.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Layout {
    /// Rank r has part r of `ranks`.
    Contiguous = FA_CP_LAYOUT_CONTIGUOUS,
    /// Rank r has parts r and 2 · ranks − 1 − r of 2 · ranks: equal work for each under a causal mask.
    Zigzag = FA_CP_LAYOUT_ZIGZAG,
}

/// How ranks share the work.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Method {
    /// The possible method with the lowest estimated time. If only keys are distributed, merge.
    Auto = FA_CP_METHOD_AUTO,
    /// Each rank computes all rows of its share of the heads.
    Ulysses = FA_CP_METHOD_ULYSSES,
    /// Each rank computes its rows with the keys that they see, which it gathers.
    AllGather = FA_CP_METHOD_ALL_GATHER,
    /// Keys pass from rank to rank.
    Ring = FA_CP_METHOD_RING,
}

/// How a problem is distributed over the ranks. It is the same on all ranks.
#[derive(Clone, Copy)]
pub struct Spread {
    desc: fa_cp_desc_t,
}

impl Spread {
    /// Distributes rows of q and o, and keys of k and v: training, prefill.
    pub fn rows(layout: Layout) -> Self {
        Spread { desc: fa_cp_desc_t { shard: FA_CP_SHARD_ROWS, layout: layout as i32, ..Default::default() } }
    }

    /// Distributes only keys: decoding from a distributed cache. Each rank has all of q and gets all of o.
    pub fn keys() -> Self {
        Spread { desc: fa_cp_desc_t { shard: FA_CP_SHARD_KEYS, ..Default::default() } }
    }

    /// The method, instead of [`Method::Auto`].
    pub fn method(mut self, method: Method) -> Self {
        self.desc.method = method as i32;
        self
    }

    /// For all-gather: number of k heads gathered at once.
    pub fn head_chunk(mut self, heads: usize) -> Self {
        self.desc.head_chunk = i32::try_from(heads).unwrap_or(i32::MAX);
        self
    }

    /// Parts begin at multiples of this number of rows.
    pub fn block(mut self, rows: usize) -> Self {
        self.desc.block = i64::try_from(rows).unwrap_or(i64::MAX);
        self
    }

    /// The rows of one rank, in ascending order, for data loaders, position numbers and labels. It needs no transport.
    ///
    /// ```
    /// use flashattn::cp::{Layout, Lengths, Spread};
    /// let mine = Spread::rows(Layout::Zigzag).partition(0, 2, Lengths::Each { batch: 1, rows: 8 })?;
    /// assert_eq!(mine.iter().map(|r| (r.begin, r.rows, r.local)).collect::<Vec<_>>(), [(0, 2, 0), (6, 2, 2)]);
    /// # Ok::<(), flashattn::Error>(())
    /// ```
    pub fn partition(&self, rank: usize, ranks: usize, lengths: Lengths<'_>) -> Result<Vec<Range>> {
        let (cu, batch, seqlen) = match lengths {
            Lengths::Each { batch, rows } => (ptr::null(), batch, rows),
            Lengths::Packed([]) => return Err(invalid("cu_seqlens has 0 entries: expected 1 or more".into())),
            Lengths::Packed(starts) => (starts.as_ptr(), starts.len() - 1, 0),
        };
        let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let mut found: Vec<Range> = Vec::new();
        let mut count = 0;
        // First it is asked how many there are.
        for counted in [false, true] {
            let ranges = if counted { found.as_mut_ptr() } else { ptr::null_mut() };
            // SAFETY: cu has batch + 1 entries or is null, ranges is null or has room for so many, count is writable.
            let status = unsafe {
                fa_cp_partition(
                    &self.desc,
                    number(rank),
                    number(ranks),
                    cu,
                    size(batch),
                    size(seqlen),
                    ranges,
                    size(found.len()),
                    &mut count,
                )
            };
            check(ptr::null_mut(), status)?;
            if !counted {
                found = room(usize::try_from(count).unwrap_or(usize::MAX))?;
            }
        }
        Ok(found)
    }
}

/// Lengths of sequences.
#[derive(Clone, Copy, Debug)]
pub enum Lengths<'a> {
    /// The same length for each.
    Each {
        /// Number of sequences.
        batch: usize,
        /// Rows of each sequence.
        rows: usize,
    },
    /// `cu_seqlens`: where each sequence begins among the packed rows, and where the last one ends.
    Packed(&'a [i32]),
}

/// Rows [begin, begin + rows) of a sequence. On the rank they start at its row `local`.
pub type Range = fa_cp_range_t;

fn check(raw: fa_cp_t, status: i32) -> Result<()> {
    if status == sys::FA_OK {
        return Ok(());
    }
    // SAFETY: raw is live or null; the sentence lives until the next call and is copied here.
    let message = unsafe { CStr::from_ptr(fa_cp_last_error(raw)) }.to_string_lossy().into_owned();
    Err(Error::of(status, message))
}

/// A rank, with its handle and its transport.
pub struct ContextParallel {
    raw: fa_cp_t,
    handle: Handle,
    wires: Pinned<Wires>,
    rank: usize,
    ranks: usize,
}

// SAFETY: the library binds neither to a thread, and the transport is Send.
unsafe impl Send for ContextParallel {}

impl ContextParallel {
    /// The handle's tensors are in host memory. limit: the longest wait for a peer, which may be computing meanwhile; `None`: no limit.
    pub fn new(mut handle: Handle, transport: impl Transport + Send + 'static, limit: Option<Duration>) -> Result<Self> {
        let (rank, ranks) = (transport.rank(), transport.ranks());
        let wires = Pinned::new(Wires::new(transport));
        let functions = fa_cp_transport_t {
            rank: i32::try_from(rank).unwrap_or(i32::MAX),
            ranks: i32::try_from(ranks).unwrap_or(i32::MAX),
            user: wires.pointer().cast(),
            start: Some(on_start),
            wait: Some(on_wait),
            abandon: Some(on_abandon),
            ..Default::default()
        };
        // 0 would be the library's own limit.
        let timeout_ms = limit.map_or(-1, |limit| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).max(1));
        let info = fa_cp_create_info_t { transport: &functions, timeout_ms, ..Default::default() };
        let mut raw = ptr::null_mut();
        // SAFETY: all are live; the handle and the wires outlive the object.
        let status = unsafe { fa_cp_create(&mut raw, handle.as_raw(), &info) };
        check(ptr::null_mut(), status)?;
        Ok(ContextParallel { raw, handle, wires, rank, ranks })
    }

    /// The handle, for calls on this rank alone, such as [`OpenHandle::set`] and those on this rank's cache. This object keeps owning it:
    ///
    /// ```
    /// # use flashattn::{cp::ContextParallel, sys, Result};
    /// fn alone(cp: &mut ContextParallel) -> Result<()> {
    ///     cp.handle().set(sys::FA_PARAM_THREADS, 1)
    /// }
    /// ```
    ///
    /// ```compile_fail,E0308
    /// # use flashattn::{cp::ContextParallel, Handle};
    /// fn swapped(cp: &mut ContextParallel, other: Handle) {
    ///     *cp.handle() = other;
    /// }
    /// ```
    ///
    /// ```compile_fail,E0277
    /// # use flashattn::cp::ContextParallel;
    /// fn exchanged(one: &mut ContextParallel, other: &mut ContextParallel) {
    ///     std::mem::swap(one.handle(), other.handle());
    /// }
    /// ```
    pub fn handle(&mut self) -> &mut OpenHandle {
        &mut self.handle
    }

    /// Attention over all ranks. All ranks make this call. The descriptor has the sizes of the whole problem. Slices hold this rank's rows
    /// or keys, as `spread` says.
    pub fn forward(&mut self, attention: &Attention, spread: &Spread, call: &Forward<'_>) -> Result<()> {
        let read = self.read_forward(attention, spread, call);
        let (desc, args) = self.told(read)?;
        // SAFETY: the library has said that it touches no more than each slice has, and outputs are borrowed alone.
        let status = unsafe { fa_cp_forward(self.raw, &desc, &spread.desc, &args) };
        self.said(status)
    }

    /// Gradients over all ranks. `forward` is as in [`OpenHandle::backward`].
    pub fn backward(&mut self, attention: &Attention, spread: &Spread, forward: &impl Inputs, call: &Backward<'_>) -> Result<()> {
        let forward = forward.forward();
        let read = self.read_backward(attention, spread, forward, call);
        let (desc, mut args) = self.told(read)?;
        args.forward = &forward.args;
        // SAFETY: as in `forward`; what the forward's args point to is only read.
        let status = unsafe { fa_cp_backward(self.raw, &desc, &spread.desc, &args) };
        self.said(status)
    }

    /// Describes a forward as text: the method, this rank's share and the bytes that it sends.
    pub fn explain(&mut self, attention: &Attention, spread: &Spread, call: &Forward<'_>) -> Result<String> {
        let (desc, args) = self.read_forward(attention, spread, call)?;
        let args: *const sys::fa_forward_args_t = &args;
        let mut text = [0u8; sys::FA_TEXT_MAX as usize];
        // SAFETY: all are live; text is writable for so many bytes and zero-terminated.
        let status = unsafe {
            fa_cp_explain(
                self.raw,
                &desc,
                &spread.desc,
                sys::FA_OP_FORWARD,
                args.cast(),
                text.as_mut_ptr().cast(),
                text.len() as u64,
            )
        };
        self.said(status)?;
        Ok(crate::handle::text_of(&text))
    }

    /// The bytes and messages that this rank sent in the last call.
    pub fn traffic(&self) -> (u64, u64) {
        let (mut bytes, mut messages) = (0, 0);
        // SAFETY: the object is live, both are writable.
        let status = unsafe { fa_cp_traffic(self.raw, &mut bytes, &mut messages) };
        assert_eq!(status, sys::FA_OK, "it refuses no object that is there");
        (bytes, messages)
    }

    fn said(&mut self, status: i32) -> Result<()> {
        if let Some(panic) = self.wires.panic.take() {
            resume_unwind(panic);
        }
        check(self.raw, status)
    }

    /// Where this rank refuses a call by itself, the others, which wait for it, hear of it.
    fn told<T>(&mut self, read: Result<T>) -> Result<T> {
        if read.is_err() {
            // SAFETY: the object is live; the library refuses null, and tells the others.
            let refused = unsafe { fa_cp_forward(self.raw, ptr::null(), ptr::null(), ptr::null()) };
            assert_ne!(refused, sys::FA_OK);
        }
        read
    }

    fn read_forward(
        &self,
        attention: &Attention,
        spread: &Spread,
        call: &Forward<'_>,
    ) -> Result<(sys::fa_attention_desc_t, sys::fa_forward_args_t)> {
        let mut desc = attention.desc;
        call.bounds.settle(&mut desc, false)?;
        let local = self.local(&desc, spread, call)?;
        call.bounds.check_those(&local.rows, Forward::OP, &call.args, |name| !of_keys(name))?;
        call.bounds.check_those(&local.keys, Forward::OP, &call.args, of_keys)?;
        Ok((desc, call.args))
    }

    fn read_backward(
        &self,
        attention: &Attention,
        spread: &Spread,
        forward: &Forward<'_>,
        call: &Backward<'_>,
    ) -> Result<(sys::fa_attention_desc_t, sys::fa_backward_args_t)> {
        let mut desc = attention.desc;
        let mut args = call.args;
        args.forward = &forward.args;
        forward.bounds.settle(&mut desc, false)?;
        call.bounds.settle(&mut desc, args.flags & sys::FA_BACKWARD_ACCUMULATE != 0)?;
        let local = self.local(&desc, spread, forward)?;
        for (part, keys) in [(&local.rows, false), (&local.keys, true)] {
            forward.bounds.check_those(part, Forward::OP, &forward.args, |name| of_keys(name) == keys)?;
            call.bounds.check_those(part, Backward::OP, &args, |name| of_keys(name) == keys)?;
        }
        Ok((desc, args))
    }

    /// The descriptor with the sizes of this rank's rows, whose pairs have all keys; and with those of its keys.
    fn local(&self, desc: &sys::fa_attention_desc_t, spread: &Spread, call: &Forward<'_>) -> Result<Local> {
        let (mut rows, mut keys) = (*desc, *desc);
        if spread.desc.shard != FA_CP_SHARD_ROWS {
            return Ok(Local { rows, keys });
        }
        let own = |starts: Option<&[i32]>, each: i64| -> Result<i64> {
            let batch = usize::try_from(desc.batch).unwrap_or(0);
            let lengths = match starts {
                Some(starts) => Lengths::Packed(starts),
                None => Lengths::Each { batch: 1, rows: usize::try_from(each).unwrap_or(0) },
            };
            let ranges = if batch == 0 { Vec::new() } else { spread.partition(self.rank, self.ranks, lengths)? };
            Ok(ranges.iter().map(|range| range.rows).sum())
        };
        let cu_q = starts(desc, call, sys::FA_OPERAND_CU_SEQLENS_Q, "cu_seqlens_q", call.args.cu_seqlens_q)?;
        let cu_k = starts(desc, call, sys::FA_OPERAND_CU_SEQLENS_K, "cu_seqlens_k", call.args.cu_seqlens_k)?;
        let (own_rows, own_keys) = (own(cu_q, desc.seqlen_q)?, own(cu_k, desc.seqlen_k)?);
        for part in [&mut rows, &mut keys] {
            *if cu_q.is_some() { &mut part.total_q } else { &mut part.seqlen_q } = own_rows;
        }
        *if cu_k.is_some() { &mut keys.total_k } else { &mut keys.seqlen_k } = own_keys;
        Ok(Local { rows, keys })
    }
}

struct Local {
    rows: sys::fa_attention_desc_t,
    keys: sys::fa_attention_desc_t,
}

/// Where packed sequences begin; `None`: they are not packed.
fn starts<'a>(
    desc: &sys::fa_attention_desc_t,
    call: &Forward<'a>,
    operand: u64,
    name: &str,
    array: *const i32,
) -> Result<Option<&'a [i32]>> {
    if desc.operands & operand == 0 || array.is_null() {
        return Ok(None);
    }
    call.bounds.check_those(desc, Forward::OP, &call.args, |field| field == name)?;
    // SAFETY: borrowed for 'a, and of as many entries, as the library has just said; batch is not negative then.
    Ok(Some(unsafe { std::slice::from_raw_parts(array, desc.batch as usize + 1) }))
}

fn of_keys(name: &str) -> bool {
    matches!(name, "k" | "v" | "dk" | "dv")
}

impl std::fmt::Debug for ContextParallel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContextParallel").field("rank", &self.rank).field("ranks", &self.ranks).finish_non_exhaustive()
    }
}

impl Drop for ContextParallel {
    fn drop(&mut self) {
        // SAFETY: created by fa_cp_create, destroyed once, before the handle, which nobody could put another in the place of, and the
        // wires.
        unsafe { fa_cp_destroy(self.raw) };
    }
}
