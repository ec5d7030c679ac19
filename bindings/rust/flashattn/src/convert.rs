//! Copies between tensors with strides.

use std::marker::PhantomData;
use std::mem::size_of_val;
use std::os::raw::c_void;

use crate::calls::size;
use crate::error::invalid;
use crate::{sys, Element, Result};

/// Copies, converts, sums or clears a tensor with strides. Sizes count elements. Strides count units, and the last is 1. Without x, out
/// becomes 0.
pub struct Conversion<'a> {
    raw: sys::fa_conversion_t,
    x_bytes: usize,
    out_bytes: usize,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> Conversion<'a> {
    /// size: elements as (batch, row, head, dim), or any other four dimensions; 1 for a dimension that is not used.
    pub fn new(sizes: [usize; 4]) -> Self {
        let raw = sys::fa_conversion_t { size: sizes.map(size), ..Default::default() };
        Self { raw, x_bytes: 0, out_bytes: 0, life: PhantomData }
    }

    /// The tensor that is read.
    pub fn x<T: Element>(mut self, x: &'a [T], strides: [usize; 4]) -> Self {
        (self.raw.x, self.raw.x_dtype, self.x_bytes) = (x.as_ptr() as *const c_void, T::DTYPE as i32, size_of_val(x));
        self.raw.x_stride = strides.map(size);
        self
    }

    /// The tensor that is written.
    pub fn out<T: Element>(mut self, out: &'a mut [T], strides: [usize; 4]) -> Self {
        (self.raw.out_dtype, self.out_bytes) = (T::DTYPE as i32, size_of_val(out));
        self.raw.out = out.as_mut_ptr() as *mut c_void;
        self.raw.out_stride = strides.map(size);
        self
    }

    /// x (f32, f16 or bf16) is added to the values of out (f32).
    pub fn accumulate(mut self) -> Self {
        self.raw.flags |= sys::FA_CONVERT_ACCUMULATE as u64;
        self
    }

    /// What the library is given, once it is known to stay within the slices.
    pub(crate) fn checked(&self) -> Result<sys::fa_conversion_t> {
        let c = &self.raw;
        for (name, has, used) in [
            ("x", self.x_bytes, if c.x.is_null() { 0 } else { reach(c.x_dtype, &c.size, &c.x_stride) }),
            ("out", self.out_bytes, reach(c.out_dtype, &c.size, &c.out_stride)),
        ] {
            if used > has as u64 {
                return Err(invalid(format!("{name} has {has} bytes: the call would use {used}")));
            }
        }
        Ok(self.raw)
    }
}

/// Bytes to the end of the last element, as many as there can be where they are more; 0 of what the library refuses.
fn reach(dtype: i32, sizes: &[i64; 4], strides: &[i64; 4]) -> u64 {
    let (mut elements, mut bytes) = (0, 0);
    // SAFETY: both are writable.
    if unsafe { sys::fa_dtype_unit(dtype, &mut elements, &mut bytes) } != sys::FA_OK {
        return 0;
    }
    let units = [sizes[0], sizes[1], sizes[2], sizes[3] / elements];
    if units.iter().any(|&n| n <= 0) {
        return 0;
    }
    let steps = units.iter().zip(strides).map(|(&n, &stride)| (n as u64 - 1).saturating_mul(stride as u64));
    steps.fold(0, u64::saturating_add).saturating_add(1).saturating_mul(bytes as u64)
}
