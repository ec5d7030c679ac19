//! A value that C has a pointer to.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Owns a value at an address that stays. A `Box` would not do: wherever it is moved, it claims to be the only way to its value.
pub(crate) struct Pinned<T>(NonNull<T>);

impl<T> Pinned<T> {
    pub(crate) fn new(value: T) -> Self {
        Pinned(NonNull::from(Box::leak(Box::new(value))))
    }

    /// For C, as long as this lives. Nobody has a reference to the value while C uses it.
    pub(crate) fn pointer(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Deref for Pinned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: it lives until this is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: made by new() of a box, and given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
