//! One attention over several ranks: processes, or threads with a [`ContextParallel`] each. All ranks make the same calls in the same
//! order, on tensors that hold their own rows; what travels between them goes over a [`Transport`] of the program's. `flashattn_cp.h` is
//! the manual.

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

/// Why a message did not come.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer did not answer within the limit.
    TimedOut,
    /// The peer, or the way to it, failed; or its message has another length.
    PeerFailed,
    /// No memory for the message.
    OutOfMemory,
}

/// A message to a peer.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Its rank.
    pub peer: usize,
    /// The same on both sides; those that are in flight at once differ in their low 15 bits.
    pub tag: u64,
    /// At most 2^30.
    pub bytes: &'a [u8],
}

/// A message that a peer sends.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Its rank.
    pub peer: usize,
    /// As the sender has it.
    pub tag: u64,
    /// How long it is.
    pub bytes: usize,
}

/// Where an [`Incoming`] goes.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// The sender's rank.
    pub peer: usize,
    /// As the sender has it.
    pub tag: u64,
    /// To be filled.
    pub bytes: &'a mut [u8],
}

/// How ranks talk to each other. Two ranks list the messages between them in the same order.
pub trait Transport {
    /// This rank, from 0 on.
    fn rank(&self) -> usize;
    /// How many there are.
    fn ranks(&self) -> usize;
    /// Starts a group of messages without waiting for any peer; what is sent is borrowed for the call alone. Returns a number by which the
    /// wait for it is told.
    fn start(&mut self, outgoing: &[Outgoing<'_>], incoming: &[Incoming]) -> std::result::Result<u64, Failure>;
    /// Returns when the group is done, its messages in `arrivals`, in the order of `incoming`. limit: `None` is none.
    fn wait(&mut self, group: u64, arrivals: &mut [Arrival<'_>], limit: Option<Duration>) -> std::result::Result<(), Failure>;
}

/// Who has which rows of a sequence.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Layout {
    /// Rank r has part r.
    Contiguous = FA_CP_LAYOUT_CONTIGUOUS,
    /// Rank r has parts r and 2 · ranks − 1 − r of twice as many: equal work for each under a causal mask.
    Zigzag = FA_CP_LAYOUT_ZIGZAG,
}

/// How ranks share the work.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Method {
    /// Ulysses where it can, else all-gather; merge where keys alone are spread.
    Auto = FA_CP_METHOD_AUTO,
    /// Each rank computes all rows of its share of the heads.
    Ulysses = FA_CP_METHOD_ULYSSES,
    /// Each rank computes its rows with the keys that they see, which are gathered.
    AllGather = FA_CP_METHOD_ALL_GATHER,
    /// Keys pass from rank to rank.
    Ring = FA_CP_METHOD_RING,
}

/// How a problem is spread over the ranks; the same on all of them.
#[derive(Clone, Copy)]
pub struct Spread {
    desc: fa_cp_desc_t,
}

impl Spread {
    /// Rows of q and o, keys of k and v.
    pub fn rows(layout: Layout) -> Self {
        Spread { desc: fa_cp_desc_t { shard: FA_CP_SHARD_ROWS, layout: layout as i32, ..Default::default() } }
    }

    /// Keys alone, as a cache that lies on several ranks: each has all of q and gets all of o.
    pub fn keys() -> Self {
        Spread { desc: fa_cp_desc_t { shard: FA_CP_SHARD_KEYS, ..Default::default() } }
    }

    /// Instead of [`Method::Auto`].
    pub fn method(mut self, method: Method) -> Self {
        self.desc.method = method as i32;
        self
    }

    /// All-gather: k heads that are gathered at once.
    pub fn head_chunk(mut self, heads: usize) -> Self {
        self.desc.head_chunk = i32::try_from(heads).unwrap_or(i32::MAX);
        self
    }

    /// Parts begin at multiples of it.
    pub fn block(mut self, rows: usize) -> Self {
        self.desc.block = i64::try_from(rows).unwrap_or(i64::MAX);
        self
    }

    /// The rows of one rank, in ascending order: for loaders of data, position numbers and labels. Needs no transport.
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

/// Rows of sequences.
#[derive(Clone, Copy, Debug)]
pub enum Lengths<'a> {
    /// As many in each.
    Each {
        /// Sequences.
        batch: usize,
        /// Rows of one.
        rows: usize,
    },
    /// Where each begins among packed rows, and where the last ends.
    Packed(&'a [i32]),
}

/// Rows [begin, begin + rows) of a sequence, which a rank has from its row `local` on.
pub type Range = fa_cp_range_t;

fn check(raw: fa_cp_t, status: i32) -> Result<()> {
    if status == sys::FA_OK {
        return Ok(());
    }
    // SAFETY: raw is live or null; the sentence lives until the next call and is copied here.
    let message = unsafe { CStr::from_ptr(fa_cp_last_error(raw)) }.to_string_lossy().into_owned();
    Err(Error::of(status, message))
}

/// A rank: a handle to compute with, and a transport to the others.
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
    /// The handle's tensors lie in host memory. limit: the longest wait for a peer, which may be computing meanwhile; `None`: no limit.
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

    /// The handle, for what it does by itself, as [`OpenHandle::set`] and the calls on this rank's cache. It stays this object's:
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

    /// Attention over all ranks, which all make this call. The descriptor has the sizes of the whole problem; slices hold this rank's rows,
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

    /// The method of a forward, this rank's share, and what it sends, in words.
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

    /// Bytes and messages that this rank sent in the last call.
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
