#![doc = include_str!("../README.md")]

mod bindings;
pub use bindings::*;
