//! FlashAttention: `o = softmax(scale · q kᵀ, masked) v` without ever storing the score matrix.
//!
//! [`Handle::attention`] computes dense attention on slices and checks everything that memory safety needs. All else that the
//! library can do is reached through [`sys`] and [`Handle::as_raw`].
//!
//! ```
//! use flashattn::{Alignment, Attention, Handle};
//! let shape = Attention { batch: 1, heads_q: 2, seqlen_q: 3, seqlen_k: 3, dim_qk: 4, ..Attention::default() };
//! let (q, k, v) = ([0.5f32; 24], [0.25f32; 24], [2.0f32; 24]);
//! let mut o = [0.0f32; 24];
//! Handle::new()?.attention(&shape.causal(Alignment::TopLeft), &q, &k, &v, &mut o)?;
//! assert_eq!(o[..8], v[..8]); // the first row of each head sees one key
//! # Ok::<(), flashattn::Error>(())
//! ```

pub mod sys;

use std::ffi::{c_void, CStr};
use std::fmt;
use std::mem::size_of_val;
use std::ptr;

/// What the library said when a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// `FA_INVALID_ARGUMENT` … of [`sys`].
    pub status: i32,
    /// One sentence: which field, its value, what was expected.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the name of a status is a string of the library that lives forever.
        let name = unsafe { CStr::from_ptr(sys::fa_status_name(self.status)) };
        write!(f, "{}: {}", name.to_string_lossy(), self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

/// Where a handle computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Backend {
    /// The first usable of CUDA, HIP and CPU.
    Auto = sys::FA_BACKEND_AUTO,
    Cpu = sys::FA_BACKEND_CPU,
    Cuda = sys::FA_BACKEND_CUDA,
    Hip = sys::FA_BACKEND_HIP,
}

/// Where the diagonal of a mask lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Alignment {
    /// Row 0 stands on key 0.
    TopLeft = sys::FA_ALIGN_TOP_LEFT,
    /// The last row stands on the last key: right for decoding.
    BottomRight = sys::FA_ALIGN_BOTTOM_RIGHT,
}

/// An element type of q, k, v and o.
///
/// # Safety
/// `DTYPE` must name a library type of exactly this type's size, of which every bit pattern is a value.
pub unsafe trait Element: Copy {
    const DTYPE: i32;
}
unsafe impl Element for f32 {
    const DTYPE: i32 = sys::FA_F32;
}

/// The bits of an IEEE half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);
unsafe impl Element for F16 {
    const DTYPE: i32 = sys::FA_F16;
}

/// The bits of a bfloat16: the upper half of an f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);
unsafe impl Element for Bf16 {
    const DTYPE: i32 = sys::FA_BF16;
}

/// A dense attention: q is `[batch][seqlen_q][heads_q][dim_qk]`, k `[batch][seqlen_k][heads_k][dim_qk]`,
/// v `[batch][seqlen_k][heads_v][dim_v]`, o `[batch][seqlen_q][heads_q][dim_v]`. Zero means the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attention {
    pub batch: usize,
    pub heads_q: usize,
    /// Divides `heads_q`; 0: the same.
    pub heads_k: usize,
    /// Divides `heads_q`; 0: `heads_k`. Another number is not supported yet.
    pub heads_v: usize,
    pub seqlen_q: usize,
    pub seqlen_k: usize,
    pub dim_qk: usize,
    /// 0: `dim_qk`.
    pub dim_v: usize,
    /// Each row sees keys up to its own position.
    pub causal: bool,
    /// Needed by `causal` and `window`.
    pub alignment: Option<Alignment>,
    /// Keys kept to the left and right of a row's position; `None` inside: all.
    pub window: Option<(Option<usize>, Option<usize>)>,
    /// `None`: 1 / sqrt(dim_qk).
    pub scale: Option<f32>,
    /// 0: off.
    pub softcap: f32,
}

impl Attention {
    /// The same, causal.
    pub fn causal(mut self, alignment: Alignment) -> Self {
        self.causal = true;
        self.alignment = Some(alignment);
        self
    }

    fn descriptor(&self, dtype: i32) -> Result<sys::fa_attention_desc_t> {
        let mut d = sys::fa_attention_desc_t {
            q_dtype: dtype,
            batch: size("batch", self.batch)?,
            heads_q: size("heads_q", self.heads_q)?,
            heads_k: size("heads_k", self.heads_k)?,
            heads_v: size("heads_v", self.heads_v)?,
            seqlen_q: size("seqlen_q", self.seqlen_q)?,
            seqlen_k: size("seqlen_k", self.seqlen_k)?,
            dim_qk: size("dim_qk", self.dim_qk)?,
            dim_v: size("dim_v", self.dim_v)?,
            softcap: self.softcap,
            alignment: self.alignment.map_or(sys::FA_ALIGN_UNSET, |a| a as i32),
            ..Default::default()
        };
        if self.causal {
            d.flags |= sys::FA_CAUSAL;
        }
        if let Some((left, right)) = self.window {
            d.flags |= sys::FA_WINDOW;
            d.window_left = left.map_or(Ok(-1), |keys| size("window left", keys))?;
            d.window_right = right.map_or(Ok(-1), |keys| size("window right", keys))?;
        }
        if let Some(scale) = self.scale {
            d.flags |= sys::FA_SCALE_EXPLICIT;
            d.scale = scale;
        }
        Ok(d)
    }

    fn check_length(&self, name: &str, length: usize, shape: [usize; 4]) -> Result<()> {
        let expected = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        match expected {
            Some(n) if n == length => Ok(()),
            _ => Err(invalid(format!("{name} has {length} elements, but its shape is {shape:?}"))),
        }
    }

    fn check_lengths(&self, q: usize, k: usize, v: usize, o: usize) -> Result<()> {
        let heads_k = if self.heads_k == 0 { self.heads_q } else { self.heads_k };
        let heads_v = if self.heads_v == 0 { heads_k } else { self.heads_v };
        let dim_v = if self.dim_v == 0 { self.dim_qk } else { self.dim_v };
        self.check_length("q", q, [self.batch, self.seqlen_q, self.heads_q, self.dim_qk])?;
        self.check_length("k", k, [self.batch, self.seqlen_k, heads_k, self.dim_qk])?;
        self.check_length("v", v, [self.batch, self.seqlen_k, heads_v, dim_v])?;
        self.check_length("o", o, [self.batch, self.seqlen_q, self.heads_q, dim_v])
    }
}

/// The library says how far it would go behind the pointer that lies at `field` in the args, whose slice has `room` bytes.
fn check_room(desc: &sys::fa_attention_desc_t, args: &sys::fa_forward_args_t, name: &str, field: usize, room: usize) -> Result<()> {
    let (args, mut bytes): (*const sys::fa_forward_args_t, u64) = (args, 0);
    // SAFETY: both structs are live, bytes is writable; pointers in the args are not followed.
    let status = unsafe { sys::fa_extent(desc, sys::FA_OP_FORWARD, args.cast(), field as u32, &mut bytes) };
    check(ptr::null_mut(), status)?;
    if bytes > room as u64 {
        return Err(invalid(format!("{name} has {room} bytes: the call would use {bytes}")));
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error { status: sys::FA_INVALID_ARGUMENT, message }
}

fn size(name: &str, value: usize) -> Result<i64> {
    i64::try_from(value).map_err(|_| invalid(format!("{name} is {value}, more than the library can count")))
}

/// Owns backend, device, threads and scratch memory. Takes ordinary memory on every backend. It has one owner:
///
/// ```compile_fail
/// fn clone<T: Clone>() {}
/// clone::<flashattn::Handle>();
/// ```
#[derive(Debug)]
pub struct Handle {
    raw: sys::fa_handle_t,
}

// SAFETY: a handle may be used from any thread, though from one at a time, which `&mut self` ensures.
unsafe impl Send for Handle {}

impl Handle {
    /// A handle on the first usable of CUDA, HIP and CPU.
    pub fn new() -> Result<Handle> {
        Handle::with_backend(Backend::Auto)
    }

    /// A handle on this backend; never another instead.
    pub fn with_backend(backend: Backend) -> Result<Handle> {
        let info = sys::fa_create_info_t { backend: backend as i32, memory: sys::FA_MEMORY_HOST, ..Default::default() };
        let mut raw = ptr::null_mut();
        // SAFETY: both point to live values of the declared types.
        let status = unsafe { sys::fa_create(&mut raw, &info) };
        check(ptr::null_mut(), status)?;
        Ok(Handle { raw })
    }

    /// The backend that the handle resolved to.
    pub fn backend(&mut self) -> Result<Backend> {
        Ok(match self.get(sys::FA_INFO_BACKEND)? as i32 {
            sys::FA_BACKEND_CUDA => Backend::Cuda,
            sys::FA_BACKEND_HIP => Backend::Hip,
            _ => Backend::Cpu,
        })
    }

    /// Sets a parameter, `FA_PARAM_…` of [`sys`].
    pub fn set(&mut self, key: i32, value: i64) -> Result<()> {
        // SAFETY: the handle is live.
        check(self.raw, unsafe { sys::fa_param_set(self.raw, key, value) })
    }

    /// Reads a parameter, a fact or a figure, `FA_PARAM_…`, `FA_INFO_…` or `FA_STAT_…` of [`sys`].
    pub fn get(&mut self, key: i32) -> Result<i64> {
        let mut value = 0;
        // SAFETY: the handle is live, value is writable.
        check(self.raw, unsafe { sys::fa_param_get(self.raw, key, &mut value) })?;
        Ok(value)
    }

    /// Writes the attention of q, k and v into o.
    pub fn attention<T: Element>(&mut self, shape: &Attention, q: &[T], k: &[T], v: &[T], o: &mut [T]) -> Result<()> {
        self.forward(shape, q, k, v, o, None)
    }

    /// The same, and the logarithm of each row's sum of exponentials into lse, `[batch][heads_q][seqlen_q]`.
    pub fn attention_with_lse<T: Element>(
        &mut self,
        shape: &Attention,
        q: &[T],
        k: &[T],
        v: &[T],
        o: &mut [T],
        lse: &mut [f32],
    ) -> Result<()> {
        shape.check_length("lse", lse.len(), [shape.batch, shape.heads_q, shape.seqlen_q, 1])?;
        self.forward(shape, q, k, v, o, Some(lse))
    }

    fn forward<T: Element>(
        &mut self,
        shape: &Attention,
        q: &[T],
        k: &[T],
        v: &[T],
        o: &mut [T],
        lse: Option<&mut [f32]>,
    ) -> Result<()> {
        shape.check_lengths(q.len(), k.len(), v.len(), o.len())?;
        let mut desc = shape.descriptor(T::DTYPE)?;
        let mut args = sys::fa_forward_args_t {
            q: q.as_ptr() as *const c_void,
            k: k.as_ptr() as *const c_void,
            v: v.as_ptr() as *const c_void,
            o: o.as_mut_ptr() as *mut c_void,
            ..Default::default()
        };
        let lse_bytes = lse.as_ref().map_or(0, |lse| size_of_val(&**lse));
        if let Some(lse) = lse {
            desc.operands |= sys::FA_OPERAND_LSE;
            args.lse = lse.as_mut_ptr();
        }
        let begin = ptr::addr_of!(args) as usize;
        for (name, field, room) in [
            ("q", ptr::addr_of!(args.q) as usize, size_of_val(q)),
            ("k", ptr::addr_of!(args.k) as usize, size_of_val(k)),
            ("v", ptr::addr_of!(args.v) as usize, size_of_val(v)),
            ("o", ptr::addr_of!(args.o) as usize, size_of_val(o)),
            ("lse", ptr::addr_of!(args.lse) as usize, lse_bytes),
        ] {
            check_room(&desc, &args, name, field - begin, room)?;
        }
        // SAFETY: the library has said that it touches no more than each slice has; o and lse are borrowed alone.
        check(self.raw, unsafe { sys::fa_forward_ex(self.raw, &desc, &args) })
    }

    /// For calls through [`sys`]. The handle stays owned by `self`.
    pub fn as_raw(&mut self) -> sys::fa_handle_t {
        self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: created by fa_create, destroyed once.
        unsafe { sys::fa_destroy(self.raw) };
    }
}

/// Must be called on the thread that made the call, before the next one.
fn check(raw: sys::fa_handle_t, status: i32) -> Result<()> {
    if status == sys::FA_OK {
        return Ok(());
    }
    // SAFETY: raw is live or null; the sentence lives until the next call and is copied here.
    let message = unsafe { CStr::from_ptr(sys::fa_last_error(raw)) }.to_string_lossy().into_owned();
    Err(Error { status, message })
}

/// Version of the library that runs: major * 10000 + minor * 100 + patch.
pub fn version() -> i32 {
    // SAFETY: takes nothing.
    unsafe { sys::fa_version() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shapes that this crate checks are what the library says that it touches, to the byte.
    #[test]
    fn one_byte_less_is_too_little() {
        let shape =
            Attention { batch: 2, heads_q: 6, heads_k: 3, seqlen_q: 4, seqlen_k: 5, dim_qk: 8, dim_v: 7, ..Attention::default() };
        let mut desc = shape.descriptor(sys::FA_F16).unwrap();
        desc.operands = sys::FA_OPERAND_LSE;
        let args = sys::fa_forward_args_t::default();
        let begin = ptr::addr_of!(args) as usize;
        for (name, field, room) in [
            ("q", ptr::addr_of!(args.q) as usize, 2 * 4 * 6 * 8 * 2),
            ("k", ptr::addr_of!(args.k) as usize, 2 * 5 * 3 * 8 * 2),
            ("v", ptr::addr_of!(args.v) as usize, 2 * 5 * 3 * 7 * 2),
            ("o", ptr::addr_of!(args.o) as usize, 2 * 4 * 6 * 7 * 2),
            ("lse", ptr::addr_of!(args.lse) as usize, 2 * 6 * 4 * 4),
        ] {
            check_room(&desc, &args, name, field - begin, room).unwrap();
            let error = check_room(&desc, &args, name, field - begin, room - 1).unwrap_err();
            assert_eq!(error.message, format!("{name} has {} bytes: the call would use {room}", room - 1));
        }
    }
}
