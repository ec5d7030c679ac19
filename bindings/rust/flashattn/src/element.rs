//! Element types by trait.

use crate::Dtype;

/// A type whose slices can be tensors. If one value of the type holds several dims, a slice has one value for each such unit.
///
/// # Safety
/// `DTYPE`'s unit must have exactly this type's size, and every bit pattern of it must be a value of this type.
pub unsafe trait Element: Copy {
    /// The library's name for it.
    const DTYPE: Dtype;
}

unsafe impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
unsafe impl Element for i8 {
    const DTYPE: Dtype = Dtype::I8;
}

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident($bits:ty) = $dtype:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub $bits);
        unsafe impl Element for $name {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}
elements! {
    /// The bits of an IEEE half.
    F16(u16) = F16,
    /// The bits of a bfloat16: the upper half of an f32.
    Bf16(u16) = Bf16,
    /// The bits of an 8-bit float with 4 exponent bits.
    E4M3(u8) = E4m3,
    /// The bits of an 8-bit float with 5 exponent bits.
    E5M2(u8) = E5m2,
    /// Two 4-bit floats, the even dim in the low half.
    E2M1x2(u8) = E2m1,
    /// A scale that is a power of two.
    E8M0(u8) = E8m0,
    /// Two 4-bit integers in two's complement, the even dim in the low half.
    I4x2(u8) = I4,
    /// Two 4-bit integers 0 … 15.
    U4x2(u8) = U4,
}

macro_rules! blocks {
    ($($name:ident($words:literal) = $dtype:ident,)*) => {$(
        /// A block of 32 dims as ggml stores it, in 16-bit words with the low byte first on every machine. `u16::from_le` of the first
        /// word gives the bits of the scale.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub [u16; $words]);
        unsafe impl Element for $name {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}
blocks! {
    BlockQ4_0(9) = Q40,
    BlockQ4_1(10) = Q41,
    BlockQ5_0(11) = Q50,
    BlockQ5_1(12) = Q51,
    BlockQ8_0(17) = Q80,
}

#[cfg(feature = "half")]
unsafe impl Element for half::f16 {
    const DTYPE: Dtype = Dtype::F16;
}
#[cfg(feature = "half")]
unsafe impl Element for half::bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}
