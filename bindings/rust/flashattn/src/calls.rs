//! The args of each call. Slices have the names of the C structs' pointers.

use std::marker::PhantomData;
use std::mem::size_of_val;
use std::os::raw::c_void;
use std::ptr::addr_of;

use crate::error::{check, invalid};
use crate::sys::{self, *};
use crate::{Dtype, Element, Result};

type TypeField = fn(&mut fa_attention_desc_t) -> &mut i32;

/// A pointer that is set: what the library is asked about it.
pub(crate) struct Bound {
    name: &'static str,
    offset: usize,
    bytes: usize,
    operand: u64,
    dtype: Option<(TypeField, Dtype)>,
    written: bool,
}

#[derive(Default)]
pub(crate) struct Bounds(Vec<Bound>);

impl Bounds {
    /// A pointer that is set again counts as it is set last.
    fn set(&mut self, bound: Bound) {
        self.0.retain(|earlier| earlier.name != bound.name);
        self.0.push(bound);
    }

    /// Sets operand bits, and types where the descriptor says none. With `f32_gradients`, outputs are f32.
    pub(crate) fn settle(&self, desc: &mut fa_attention_desc_t, f32_gradients: bool) -> Result<()> {
        for bound in &self.0 {
            desc.operands |= bound.operand;
            let (field, dtype) = match bound.dtype {
                Some(typed) => typed,
                None => continue,
            };
            let declared = if f32_gradients && bound.written { FA_F32 } else { *field(desc) };
            if declared == 0 {
                *field(desc) = dtype as i32;
            } else if declared != dtype as i32 {
                let (has, expected) = (name(dtype as i32), name(declared));
                return Err(invalid(format!("{} has type {has}: expected {expected}", bound.name)));
            }
        }
        Ok(())
    }

    /// The library says how far it would go behind each pointer of the args.
    pub(crate) fn check<Args>(&self, desc: &fa_attention_desc_t, op: i32, args: &Args) -> Result<()> {
        self.check_those(desc, op, args, |_| true)
    }

    /// The same of those pointers alone whose names are wanted.
    pub(crate) fn check_those<Args>(
        &self,
        desc: &fa_attention_desc_t,
        op: i32,
        args: &Args,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        for bound in self.0.iter().filter(|bound| wanted(bound.name)) {
            let (args, mut used): (*const Args, u64) = (args, 0);
            // SAFETY: both structs are live, `used` is writable; pointers in the args are not followed.
            let status = unsafe { fa_extent(desc, op, args.cast(), bound.offset as u32, &mut used) };
            check(std::ptr::null_mut(), status)?;
            if used > bound.bytes as u64 {
                return Err(invalid(format!("{} has {} bytes: the call would use {used}", bound.name, bound.bytes)));
            }
        }
        Ok(())
    }
}

fn name(dtype: i32) -> String {
    // SAFETY: takes any number; the name lives forever.
    let name = unsafe { fa_dtype_name(dtype) };
    if name.is_null() {
        return format!("number {dtype}");
    }
    // SAFETY: not null, so a string of the library.
    unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

pub(crate) fn size(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

macro_rules! operands {
    ($name:ident, $args:ident, $op:ident; $($rest:tt)*) => {
        #[doc = concat!("Where the data of a call is: `", stringify!($args), "`. An operand that is given takes part in the call.")]
        pub struct $name<'a> {
            pub(crate) args: sys::$args,
            pub(crate) bounds: Bounds,
            life: PhantomData<&'a mut [u8]>,
        }

        impl Default for $name<'_> {
            fn default() -> Self {
                Self::new()
            }
        }

        #[allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]
        impl<'a> $name<'a> {
            pub(crate) const OP: i32 = $op;

            /// Args without operands.
            pub fn new() -> Self {
                Self { args: Default::default(), bounds: Default::default(), life: PhantomData }
            }

            fn bind(&mut self, name: &'static str, field: usize, bytes: usize, operand: u64, dtype: Option<(TypeField, Dtype)>, written: bool) {
                let offset = field - addr_of!(self.args) as usize;
                self.bounds.set(Bound { name, offset, bytes, operand, dtype, written });
            }

            operands! { @methods $($rest)* }
        }
    };
    (@methods) => {};
    (@methods $(#[$doc:meta])* input of $dtype:ident $field:ident $operand:tt; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field<T: Element>(mut self, x: &'a [T]) -> Self {
            self.args.$field = x.as_ptr() as *const c_void as *mut c_void;
            let field = addr_of!(self.args.$field) as usize;
            self.bind(stringify!($field), field, size_of_val(x), $operand, Some((|d| &mut d.$dtype, T::DTYPE)), false);
            self
        }
        operands! { @methods $($rest)* }
    };
    (@methods $(#[$doc:meta])* output of $dtype:ident $field:ident $operand:tt; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field<T: Element>(mut self, x: &'a mut [T]) -> Self {
            self.args.$field = x.as_mut_ptr() as *mut c_void;
            let field = addr_of!(self.args.$field) as usize;
            self.bind(stringify!($field), field, size_of_val(x), $operand, Some((|d| &mut d.$dtype, T::DTYPE)), true);
            self
        }
        operands! { @methods $($rest)* }
    };
    (@methods $(#[$doc:meta])* input $type:ident $field:ident $operand:tt; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, x: &'a [$type]) -> Self {
            self.args.$field = x.as_ptr();
            let field = addr_of!(self.args.$field) as usize;
            self.bind(stringify!($field), field, size_of_val(x), $operand, None, false);
            self
        }
        operands! { @methods $($rest)* }
    };
    (@methods $(#[$doc:meta])* output $type:ident $field:ident $operand:tt; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, x: &'a mut [$type]) -> Self {
            self.args.$field = x.as_mut_ptr();
            let field = addr_of!(self.args.$field) as usize;
            self.bind(stringify!($field), field, size_of_val(x), $operand, None, true);
            self
        }
        operands! { @methods $($rest)* }
    };
    (@methods $(#[$doc:meta])* array $n:literal $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, values: [usize; $n]) -> Self {
            self.args.$field = values.map(size);
            self
        }
        operands! { @methods $($rest)* }
    };
    (@methods $(#[$doc:meta])* size $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, value: usize) -> Self {
            self.args.$field = size(value);
            self
        }
        operands! { @methods $($rest)* }
    };
    (@methods $(#[$doc:meta])* word $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, value: u64) -> Self {
            self.args.$field = value;
            self
        }
        operands! { @methods $($rest)* }
    };
}
include!("generated/calls.rs");

mod sealed {
    pub trait Inputs {
        fn forward(&self) -> &super::Forward<'_>;
    }
}

/// The forward's args that a backward takes, with o and LSE as the forward wrote them.
pub trait Inputs: sealed::Inputs {}

impl sealed::Inputs for Forward<'_> {
    fn forward(&self) -> &Forward<'_> {
        self
    }
}
impl Inputs for Forward<'_> {}

/// Args of a forward, made by [`Forward::computed`], that borrow o and LSE only for reading. They are for a backward. A forward, which
/// would write o and LSE, does not take them:
///
/// ```
/// # use flashattn::{Attention, Backward, Forward, Handle};
/// # let (shape, x, dout) = (Attention::new().batch(1).heads_q(1).seqlen_q(1).seqlen_k(1).dim_qk(1), [1.0f32], [1.0f32]);
/// # let (o, lse, mut dv) = ([1.0f32], [1.0f32], [0.0f32]);
/// let inputs = Forward::new().q(&x).k(&x).v(&x).computed(&o, &lse);
/// Handle::new()?.backward(&shape, &inputs, &Backward::new().dout(&dout).dv(&mut dv))?;
/// # Ok::<(), flashattn::Error>(())
/// ```
///
/// ```compile_fail,E0308
/// # use flashattn::{Attention, Backward, Forward, Handle};
/// # let (shape, x, dout) = (Attention::new().batch(1).heads_q(1).seqlen_q(1).seqlen_k(1).dim_qk(1), [1.0f32], [1.0f32]);
/// # let (o, lse, mut dv) = ([1.0f32], [1.0f32], [0.0f32]);
/// let inputs = Forward::new().q(&x).k(&x).v(&x).computed(&o, &lse);
/// Handle::new()?.forward(&shape, &inputs)?;
/// # Ok::<(), flashattn::Error>(())
/// ```
///
/// o and LSE cannot be replaced by slices that may be written:
///
/// ```compile_fail,E0599
/// # use flashattn::Forward;
/// # let (x, o, lse, mut other) = ([1.0f32], [1.0f32], [1.0f32], [0.0f32]);
/// let call = Forward::new().q(&x).k(&x).v(&x).computed(&o, &lse).o(&mut other);
/// ```
///
/// Args cannot be shared between threads, because a call writes their outputs through a shared reference:
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<flashattn::Forward<'static>>();
/// ```
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<flashattn::Conversion<'static>>();
/// ```
pub struct Computed<'a>(Forward<'a>);

impl sealed::Inputs for Computed<'_> {
    fn forward(&self) -> &Forward<'_> {
        &self.0
    }
}
impl Inputs for Computed<'_> {}

impl<'a> Forward<'a> {
    /// For a backward: o and LSE as the forward wrote them. They are only read. Call it last.
    pub fn computed<T: Element>(mut self, o: &'a [T], lse: &'a [f32]) -> Computed<'a> {
        self.args.o = o.as_ptr() as *mut c_void;
        self.args.lse = lse.as_ptr() as *mut f32;
        let (at_o, at_lse) = (addr_of!(self.args.o) as usize, addr_of!(self.args.lse) as usize);
        self.bind("o", at_o, size_of_val(o), 0, Some((|d| &mut d.o_dtype, T::DTYPE)), false);
        self.bind("lse", at_lse, size_of_val(lse), FA_OPERAND_LSE, None, false);
        Computed(self)
    }
}

impl Backward<'_> {
    /// dq, dk and dv are f32 for all types of inputs, and all gradients are added to existing values.
    pub fn accumulate(mut self) -> Self {
        self.args.flags |= FA_BACKWARD_ACCUMULATE;
        self
    }
}

impl Merge<'_> {
    /// o (f32) and lse already hold a state, and the parts are merged into it.
    pub fn accumulate(mut self) -> Self {
        self.args.flags |= FA_MERGE_ACCUMULATE;
        self
    }
}

impl<'a> Rotary<'a> {
    /// Pairs are dims (2t, 2t + 1). By default, they are (t, t + rotary_dim / 2).
    pub fn interleaved(mut self) -> Self {
        self.args.flags |= FA_ROTARY_INTERLEAVED;
        self
    }

    /// x has k's shape, type, strides and lengths instead of q's.
    pub fn of_k(mut self) -> Self {
        self.args.flags |= FA_ROTARY_OF_K;
        self
    }

    /// As [`Bounds::settle`], of the half of the descriptor that x has.
    pub(crate) fn settle(&self, desc: &mut fa_attention_desc_t) -> Result<()> {
        if self.args.flags & FA_ROTARY_OF_K == 0 {
            return self.bounds.settle(desc, false);
        }
        let mut half = fa_attention_desc_t { q_dtype: desc.k_dtype, operands: 0, ..*desc };
        self.bounds.settle(&mut half, false)?;
        desc.k_dtype = half.q_dtype;
        for (of_q, of_k) in [(FA_OPERAND_CU_SEQLENS_Q, FA_OPERAND_CU_SEQLENS_K), (FA_OPERAND_SEQUSED_Q, FA_OPERAND_SEQUSED_K)] {
            desc.operands |= if half.operands & of_q != 0 { of_k } else { 0 };
        }
        Ok(())
    }

    /// Rotates a tensor in place: it is both x and out.
    pub fn in_place<T: Element>(self, x: &'a mut [T]) -> Self {
        let bytes = size_of_val(x);
        let mut same = self.out(x);
        same.args.x = same.args.out;
        let field = addr_of!(same.args.x) as usize;
        same.bind("x", field, bytes, 0, Some((|d| &mut d.q_dtype, T::DTYPE)), false);
        same
    }
}

impl AppendKv<'_> {
    /// The rotation pairs dims (2t, 2t + 1). By default, it pairs (t, t + rotary_dim / 2).
    pub fn interleaved(mut self) -> Self {
        self.args.flags |= FA_ROTARY_INTERLEAVED;
        self
    }

    /// Quantises by the largest magnitude of each block of dims, and stores the scales.
    pub fn dynamic_scale(mut self) -> Self {
        self.args.flags |= FA_APPEND_DYNAMIC_SCALE;
        self
    }
}
