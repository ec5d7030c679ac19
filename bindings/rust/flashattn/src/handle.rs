//! Backend, device, threads and scratch memory.

use std::any::Any;
use std::ffi::{CStr, CString};
use std::ops::{Deref, DerefMut};
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr;
use std::sync::Mutex;

use crate::error::{check, invalid};
use crate::pinned::Pinned;
use crate::{sys, AppendKv, Attention, Backend, Backward, Conversion, Forward, Inputs, LogLevel, Merge, Op, Result, Rotary};

type Log = Box<dyn Fn(i32, &str) + Send + Sync>;
type ParallelFor = Box<dyn Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync>;

/// What the library calls, and the panic that it ended in.
#[derive(Default)]
struct Callbacks {
    log: Option<Log>,
    parallel_for: Option<ParallelFor>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Callbacks {
    /// A panic must not unwind into C: it goes on when the library has returned.
    fn guarded(&self, call: impl FnOnce()) -> bool {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(()) => true,
            Err(panic) => {
                *self.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(panic);
                false
            }
        }
    }

    fn resume(&self) {
        let panic = self.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// # Safety
/// `user` is the callbacks of a live handle, `message` a string.
unsafe extern "C" fn on_log(user: *mut c_void, level: i32, message: *const c_char) {
    let callbacks = &*(user as *const Callbacks);
    let line = CStr::from_ptr(message).to_string_lossy();
    callbacks.guarded(|| callbacks.log.as_ref().expect("set with this function")(level, &line));
}

/// # Safety
/// `user` is the callbacks of a live handle; `body` and `arg` are the library's, for use until this returns.
unsafe extern "C" fn on_parallel_for(
    user: *mut c_void,
    n: i64,
    body: unsafe extern "C" fn(*mut c_void, i64),
    arg: *mut c_void,
) -> sys::fa_status_t {
    struct Work {
        body: unsafe extern "C" fn(*mut c_void, i64),
        arg: *mut c_void,
        n: i64,
    }
    // SAFETY: the library's work may be done on any threads.
    unsafe impl Sync for Work {}
    impl Work {
        fn run(&self, i: usize) {
            assert!((i as i64) < self.n, "index {i} of {}", self.n);
            // SAFETY: an index within the library's work, while it waits for it.
            unsafe { (self.body)(self.arg, i as i64) }
        }
    }
    let callbacks = &*(user as *const Callbacks);
    let work = Work { body, arg, n };
    let done = callbacks.guarded(|| callbacks.parallel_for.as_ref().expect("set with this function")(n as usize, &|i| work.run(i)));
    if done {
        sys::FA_OK
    } else {
        sys::FA_INVALID_STATE
    }
}

/// Options of a new handle.
#[derive(Default)]
pub struct Builder {
    info: sys::fa_create_info_t,
    backend_dir: Option<CString>,
    callbacks: Callbacks,
}

impl Builder {
    /// The backend. It is never replaced by another.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.info.backend = backend as i32;
        self
    }

    /// Index within the backend; 0 is the first.
    pub fn device(mut self, device: i32) -> Self {
        self.info.device = device;
        self
    }

    /// Which lines the log gets.
    pub fn log_level(mut self, level: LogLevel) -> Self {
        self.info.log_level = level as i32;
        self
    }

    /// Receives the lines of the log, with their level. If it panics, the call that wrote the line panics, too.
    pub fn log(mut self, log: impl Fn(i32, &str) + Send + Sync + 'static) -> Self {
        self.callbacks.log = Some(Box::new(log));
        self
    }

    /// The program's own threads: `parallel_for(n, body)` runs body(0) … body(n − 1), each once, and returns when all are done. If it does
    /// not run all of them, the call fails. If it panics, the call panics, too. Only the CPU backend uses it.
    ///
    /// # Safety
    /// It must run no body twice. When it returns, no body may be running, and it must start none later.
    pub unsafe fn parallel_for(mut self, parallel_for: impl Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync + 'static) -> Self {
        self.callbacks.parallel_for = Some(Box::new(parallel_for));
        self
    }

    /// An absolute folder of backend modules, searched before all others. Its modules are code.
    ///
    /// # Errors
    /// A path with a zero byte in it.
    pub fn backend_dir(mut self, folder: impl AsRef<Path>) -> Result<Self> {
        let text = folder.as_ref().to_string_lossy().into_owned();
        self.backend_dir = Some(CString::new(text).map_err(|_| invalid("backend_dir has a zero byte in it".into()))?);
        Ok(self)
    }

    /// Makes the handle.
    pub fn build(self) -> Result<Handle> {
        let callbacks = Pinned::new(self.callbacks);
        let user = callbacks.pointer().cast();
        let mut info = self.info;
        info.memory = sys::FA_MEMORY_HOST;
        info.backend_dir = self.backend_dir.as_ref().map_or(ptr::null(), |folder| folder.as_ptr());
        if callbacks.log.is_some() {
            info.log = Some(on_log);
            info.log_user = user;
        }
        if callbacks.parallel_for.is_some() {
            info.parallel_for = Some(on_parallel_for);
            info.parallel_user = user;
        }
        let mut raw = ptr::null_mut();
        // SAFETY: both point to live values of the declared types; the callbacks outlive the handle.
        let status = unsafe { sys::fa_create(&mut raw, &info) };
        let made = Handle(Box::new(OpenHandle { raw, callbacks, end: [] }));
        made.callbacks.resume();
        check(ptr::null_mut(), status)?;
        Ok(made)
    }
}

/// Owns backend, device, threads and scratch memory. It takes ordinary memory on every backend. For a device's memory and streams, use a
/// handle of [`sys`] with `FA_MEMORY_DEVICE`. Its methods are those of [`OpenHandle`]. It has one owner, and serves one thread at a time:
///
/// ```
/// fn send<T: Send>() {}
/// send::<flashattn::Handle>();
/// ```
///
/// ```compile_fail,E0277
/// fn clone<T: Clone>() {}
/// clone::<flashattn::Handle>();
/// ```
///
/// ```compile_fail,E0277
/// fn sync<T: Sync>() {}
/// sync::<flashattn::Handle>();
/// ```
#[derive(Debug)]
pub struct Handle(Box<OpenHandle>);

impl Deref for Handle {
    type Target = OpenHandle;

    fn deref(&self) -> &OpenHandle {
        &self.0
    }
}

impl DerefMut for Handle {
    fn deref_mut(&mut self) -> &mut OpenHandle {
        &mut self.0
    }
}

/// A borrowed [`Handle`], with its methods. Other objects, such as [`crate::cp::ContextParallel`], keep a pointer to the same handle. This
/// type is therefore unsized: safe code cannot overwrite or swap it, and only its owner can destroy it.
pub struct OpenHandle<End: ?Sized = [()]> {
    raw: sys::fa_handle_t,
    callbacks: Pinned<Callbacks>,
    #[allow(dead_code)] // what makes it unsized
    end: End,
}

// SAFETY: a handle may be used from any thread, though from one at a time, which `&mut self` ensures.
unsafe impl<End: ?Sized> Send for OpenHandle<End> {}

impl Handle {
    /// A handle on the first usable of CUDA, HIP and CPU.
    pub fn new() -> Result<Handle> {
        Handle::builder().build()
    }

    /// A handle on this backend, which is never replaced by another.
    pub fn with_backend(backend: Backend) -> Result<Handle> {
        Handle::builder().backend(backend).build()
    }

    /// A handle with other options.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl OpenHandle {
    fn said(&self, status: i32) -> Result<()> {
        self.callbacks.resume();
        check(self.raw, status)
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
        let status = unsafe { sys::fa_param_set(self.raw, key, value) };
        self.said(status)
    }

    /// Reads a parameter, a fact or a figure, `FA_PARAM_…`, `FA_INFO_…` or `FA_STAT_…` of [`sys`].
    pub fn get(&mut self, key: i32) -> Result<i64> {
        let mut value = 0;
        // SAFETY: the handle is live, value is writable.
        let status = unsafe { sys::fa_param_get(self.raw, key, &mut value) };
        self.said(status)?;
        Ok(value)
    }

    /// Attention.
    ///
    /// Here two packed sequences have one row and two rows. Since q is 0, each output row is the mean of its sequence's v:
    ///
    /// ```
    /// # use flashattn::{Attention, Forward, Handle};
    /// let shape = Attention::new().batch(2).heads_q(1).total_q(3).total_k(3).seqlen_q(2).seqlen_k(2).dim_qk(1);
    /// let (q, v, mut o, starts) = ([0.0f32; 3], [1.0f32, 3.0, 5.0], [0.0f32; 3], [0, 1, 3]);
    /// let call = Forward::new().q(&q).k(&q).v(&v).o(&mut o).cu_seqlens_q(&starts).cu_seqlens_k(&starts);
    /// Handle::new()?.forward(&shape, &call)?;
    /// assert_eq!(o, [1.0, 4.0, 4.0]);
    /// # Ok::<(), flashattn::Error>(())
    /// ```
    pub fn forward(&mut self, attention: &Attention, call: &Forward<'_>) -> Result<()> {
        let mut desc = attention.desc;
        call.bounds.settle(&mut desc, false)?;
        call.bounds.check(&desc, Forward::OP, &call.args)?;
        // SAFETY: the library has said that it touches no more than each slice has, and outputs are borrowed alone.
        let status = unsafe { sys::fa_forward_ex(self.raw, &desc, &call.args) };
        self.said(status)
    }

    /// Gradients. `forward` is the args of the forward, or its inputs with o and LSE by [`Forward::computed`].
    ///
    /// ```
    /// # use flashattn::{Alignment, Attention, Backward, Forward, Handle};
    /// let shape = Attention::new().batch(1).heads_q(1).seqlen_q(2).seqlen_k(2).dim_qk(1).causal(Alignment::TopLeft);
    /// let (q, v, mut o, mut lse) = ([0.0f32; 2], [1.0f32, 3.0], [0.0f32; 2], [0.0f32; 2]);
    /// let inputs = || Forward::new().q(&q).k(&q).v(&v);
    /// let mut handle = Handle::new()?;
    /// handle.forward(&shape, &inputs().o(&mut o).lse(&mut lse))?;
    /// // The first row gives all of its gradient to the first value, the second one half to each.
    /// let (dout, mut dv) = ([2.0f32, 4.0], [0.0f32; 2]);
    /// handle.backward(&shape, &inputs().computed(&o, &lse), &Backward::new().dout(&dout).dv(&mut dv))?;
    /// assert_eq!(dv, [4.0, 2.0]);
    /// # Ok::<(), flashattn::Error>(())
    /// ```
    pub fn backward(&mut self, attention: &Attention, forward: &impl Inputs, call: &Backward<'_>) -> Result<()> {
        let forward = forward.forward();
        let mut desc = attention.desc;
        let mut args = call.args;
        args.forward = &forward.args;
        forward.bounds.settle(&mut desc, false)?;
        call.bounds.settle(&mut desc, args.flags & sys::FA_BACKWARD_ACCUMULATE != 0)?;
        forward.bounds.check(&desc, Forward::OP, &forward.args)?;
        call.bounds.check(&desc, Backward::OP, &args)?;
        // SAFETY: as in `forward`; what the forward's args point to is only read.
        let status = unsafe { sys::fa_backward(self.raw, &desc, &args) };
        self.said(status)
    }

    /// Merges partial results over disjoint sets of keys into the whole. Here the second part has three times the weight of the first:
    ///
    /// ```
    /// # use flashattn::{Attention, Handle, Merge};
    /// let shape = Attention::new().batch(1).heads_q(1).seqlen_q(1).dim_qk(1);
    /// let (parts, lses, mut o) = ([2.0f32, 6.0], [0.0, 3.0f32.ln()], [0.0f32]);
    /// Handle::new()?.merge(&shape, &Merge::new().parts(2).o_parts(&parts).lse_parts(&lses).o(&mut o))?;
    /// assert!((o[0] - 5.0).abs() < 1e-5);
    /// # Ok::<(), flashattn::Error>(())
    /// ```
    pub fn merge(&mut self, attention: &Attention, call: &Merge<'_>) -> Result<()> {
        let mut desc = attention.desc;
        call.bounds.settle(&mut desc, false)?;
        call.bounds.check(&desc, Merge::OP, &call.args)?;
        // SAFETY: as in `forward`.
        let status = unsafe { sys::fa_merge(self.raw, &desc, &call.args) };
        self.said(status)
    }

    /// Rotary embedding. Here a pair of dims is not changed at position 0, and rotated by a right angle at position 1:
    ///
    /// ```
    /// # use flashattn::{Attention, Handle, Rotary};
    /// let shape = Attention::new().batch(1).heads_q(1).seqlen_q(2).dim_qk(2);
    /// let (cos, sin, mut x) = ([1.0, 0.0], [0.0, 1.0], [1.0f32, 2.0, 3.0, 4.0]);
    /// Handle::new()?.rotary(&shape, &Rotary::new().cos(&cos).sin(&sin).max_position(2).rotary_dim(2).in_place(&mut x))?;
    /// assert_eq!(x, [1.0, 2.0, -4.0, 3.0]);
    /// # Ok::<(), flashattn::Error>(())
    /// ```
    pub fn rotary(&mut self, attention: &Attention, call: &Rotary<'_>) -> Result<()> {
        let mut desc = attention.desc;
        call.settle(&mut desc)?;
        call.bounds.check(&desc, Rotary::OP, &call.args)?;
        // SAFETY: as in `forward`; x may be out itself.
        let status = unsafe { sys::fa_rotary(self.raw, &desc, &call.args) };
        self.said(status)
    }

    /// Writes new tokens into the cache.
    pub fn append_kv(&mut self, attention: &Attention, call: &AppendKv<'_>) -> Result<()> {
        let mut desc = attention.desc;
        call.bounds.settle(&mut desc, false)?;
        call.bounds.check(&desc, AppendKv::OP, &call.args)?;
        // SAFETY: as in `forward`.
        let status = unsafe { sys::fa_append_kv(self.raw, &desc, &call.args) };
        self.said(status)
    }

    /// Copies, converts, sums or clears tensors with strides, one after the other. Here two rows of f32 become columns of bfloat16:
    ///
    /// ```
    /// # use flashattn::{Bf16, Conversion, Handle};
    /// let (x, mut out) = ([1.0f32, 2.0, 3.0, 4.0], [Bf16(0); 4]);
    /// let turn = Conversion::new([1, 2, 2, 1]).x(&x, [0, 2, 1, 1]).out(&mut out, [0, 1, 2, 1]);
    /// Handle::new()?.convert(&[turn])?;
    /// assert_eq!(out.map(|y| f32::from_bits((y.0 as u32) << 16)), [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), flashattn::Error>(())
    /// ```
    pub fn convert(&mut self, list: &[Conversion<'_>]) -> Result<()> {
        let raw = list.iter().map(Conversion::checked).collect::<Result<Vec<_>>>()?;
        // SAFETY: the handle is live, and no conversion touches more than its slices, of which outputs are borrowed alone.
        let status = unsafe { sys::fa_convert(self.raw, raw.as_ptr(), raw.len() as i64, 0, ptr::null_mut()) };
        self.said(status)
    }

    /// Says whether a call would work. Set types and operands in the descriptor.
    pub fn supports(&mut self, attention: &Attention, op: Op) -> Result<()> {
        // SAFETY: handle and descriptor are live.
        let status = unsafe { sys::fa_supports(self.raw, &attention.desc, op as i32) };
        self.said(status)
    }

    /// Says how a call would be computed, or why it is refused.
    pub fn explain(&mut self, attention: &Attention, op: Op) -> String {
        let mut text = [0u8; sys::FA_TEXT_MAX as usize];
        // SAFETY: handle and descriptor are live, text is writable for so many bytes and zero-terminated.
        let status = unsafe { sys::fa_explain(self.raw, &attention.desc, op as i32, text.as_mut_ptr().cast(), text.len() as u64) };
        match self.said(status) {
            Err(error) if text[0] == 0 => error.message().to_owned(),
            _ => text_of(&text),
        }
    }

    /// The bytes of scratch memory that a call needs.
    pub fn workspace_size(&mut self, attention: &Attention, op: Op) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: all are live.
        let status = unsafe { sys::fa_workspace_size(self.raw, &attention.desc, op as i32, &mut bytes) };
        self.said(status)?;
        Ok(bytes)
    }

    /// For calls through [`sys`]. The handle stays owned by `self`.
    pub fn as_raw(&mut self) -> sys::fa_handle_t {
        self.raw
    }
}

impl<End: ?Sized> std::fmt::Debug for OpenHandle<End> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenHandle").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl<End: ?Sized> Drop for OpenHandle<End> {
    fn drop(&mut self) {
        // SAFETY: created by fa_create or null, destroyed once.
        unsafe { sys::fa_destroy(self.raw) };
    }
}

/// What the library wrote up to its terminating zero.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
