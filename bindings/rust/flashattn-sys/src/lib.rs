#![doc = include_str!("../README.md")]

mod bindings;
#[cfg(feature = "cp")]
pub mod cp;
pub use bindings::*;
