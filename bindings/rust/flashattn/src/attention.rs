//! The descriptor as a builder.

use crate::calls::size;
use crate::sys;

macro_rules! choices {
    ($(#[$doc:meta])* $name:ident $($(#[$text:meta])* $variant:ident = $value:ident,)*) => {
        $(#[$doc])*
        #[non_exhaustive]
        #[allow(rustdoc::broken_intra_doc_links)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum $name {
            $($(#[$text])* $variant = sys::$value,)*
        }
    };
}
include!("generated/types.rs");

/// What is computed: types, sizes, strides, masks. It holds no data. Fields that are not set have their default, which is zero or off. A
/// value beyond the range of the C field becomes the largest of this range, which the library refuses. A call takes the types of tensors
/// from its slices. Set them here only for queries ([`crate::OpenHandle::explain`]), or to have a call checked.
#[derive(Clone, Copy)]
pub struct Attention {
    pub(crate) desc: sys::fa_attention_desc_t,
}

macro_rules! setters {
    () => {};
    ($(#[$doc:meta])* dtype $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, value: Dtype) -> Self {
            self.desc.$field = value as i32;
            self
        }
        setters! { $($rest)* }
    };
    ($(#[$doc:meta])* choice $type:ident $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, value: $type) -> Self {
            self.desc.$field = value as i32;
            self
        }
        setters! { $($rest)* }
    };
    ($(#[$doc:meta])* size $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, value: usize) -> Self {
            self.desc.$field = size(value);
            self
        }
        setters! { $($rest)* }
    };
    ($(#[$doc:meta])* small $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, value: usize) -> Self {
            self.desc.$field = i32::try_from(value).unwrap_or(i32::MAX);
            self
        }
        setters! { $($rest)* }
    };
    ($(#[$doc:meta])* real $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, value: f32) -> Self {
            self.desc.$field = value;
            self
        }
        setters! { $($rest)* }
    };
    ($(#[$doc:meta])* flag $name:ident $bit:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $name(mut self) -> Self {
            self.desc.flags |= sys::$bit;
            self
        }
        setters! { $($rest)* }
    };
    ($(#[$doc:meta])* array $n:literal $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, values: [usize; $n]) -> Self {
            self.desc.$field = values.map(size);
            self
        }
        setters! { $($rest)* }
    };
    ($(#[$doc:meta])* array $n:literal $bit:ident $field:ident; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, values: [usize; $n]) -> Self {
            self.desc.strided |= sys::$bit;
            self.desc.$field = values.map(size);
            self
        }
        setters! { $($rest)* }
    };
}

#[allow(rustdoc::broken_intra_doc_links)]
mod generated_setters {
    use super::{size, Algorithm, Attention, Dtype, ListSpace, Precision, ScoresStage};
    use crate::sys;
    macro_rules! of_attention {
        ($($all:tt)*) => {
            impl Attention {
                setters! { $($all)* }
            }
        };
    }
    include!("generated/setters.rs");
}

impl Default for Attention {
    fn default() -> Self {
        Attention::new()
    }
}

impl Attention {
    /// A descriptor without sizes.
    pub fn new() -> Self {
        Attention { desc: Default::default() }
    }

    /// Each row sees keys up to its own position.
    pub fn causal(mut self, alignment: Alignment) -> Self {
        self.desc.flags |= sys::FA_CAUSAL;
        self.alignment(alignment)
    }

    /// Keys kept to the left and to the right of a row's position, inclusive; `None`: all.
    pub fn window(mut self, left: Option<usize>, right: Option<usize>, alignment: Alignment) -> Self {
        self.desc.flags |= sys::FA_WINDOW;
        self.desc.window_left = left.map_or(-1, size);
        self.desc.window_right = right.map_or(-1, size);
        self.alignment(alignment)
    }

    /// Where the diagonal is. `causal` and `window` set it, too. Chunks and ALiBi need it.
    pub fn alignment(mut self, alignment: Alignment) -> Self {
        self.desc.alignment = alignment as i32;
        self
    }

    /// The scale of q·k, instead of 1 / sqrt(dim_qk).
    pub fn scale(mut self, scale: f32) -> Self {
        self.desc.flags |= sys::FA_SCALE_EXPLICIT;
        self.desc.scale = scale;
        self
    }

    /// `FA_OPERAND_…` of [`sys`]: the optional operands of a call, for queries. A call itself sets the bits of those that it gives.
    pub fn operands(mut self, bits: u64) -> Self {
        self.desc.operands |= bits;
        self
    }

    /// The C struct, for calls through [`sys`].
    pub fn as_raw(&self) -> &sys::fa_attention_desc_t {
        &self.desc
    }
}
