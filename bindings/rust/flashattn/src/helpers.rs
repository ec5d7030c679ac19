//! Functions that need no handle.

use std::mem::size_of;
use std::ptr;

use crate::calls::size;
use crate::error::{check, invalid};
use crate::handle::text_of;
use crate::{sys, Attention, Backend, Error, Op, Result};

/// Version of the library that runs: major * 10000 + minor * 100 + patch.
pub fn version() -> i32 {
    // SAFETY: takes nothing.
    unsafe { sys::fa_version() }
}

/// Says whether a backend is usable here. The text has the details, the error has the reason.
pub fn backend_status(backend: Backend) -> Result<String> {
    let mut text = [0u8; sys::FA_TEXT_MAX as usize];
    // SAFETY: text is writable for so many bytes.
    let status = unsafe { sys::fa_backend_status(backend as i32, text.as_mut_ptr().cast(), text.len() as u64) };
    match status {
        sys::FA_OK => Ok(text_of(&text)),
        _ => Err(Error::of(status, text_of(&text))),
    }
}

/// Says how a call would be computed on this backend and device, with everything else at its default, or why it is refused. Set types and
/// operands in the descriptor.
pub fn backend_supports(backend: Backend, device: i32, attention: &Attention, op: Op) -> Result<String> {
    let mut text = [0u8; sys::FA_TEXT_MAX as usize];
    let room = text.len() as u64;
    // SAFETY: the descriptor is live, text is writable for so many bytes.
    let status =
        unsafe { sys::fa_backend_supports(backend as i32, device, &attention.desc, op as i32, text.as_mut_ptr().cast(), room) };
    match status {
        sys::FA_OK => Ok(text_of(&text)),
        _ => Err(Error::of(status, text_of(&text))),
    }
}

/// A device of a backend.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Index within the backend.
    pub device: i32,
    /// CPU: hardware threads that this process may use; GPU: multiprocessors.
    pub compute_units: i32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Its name, as the system or the driver gives it.
    pub name: String,
    /// CPU: the best instruction set that the library can use on it; GPU: its architecture.
    pub arch: String,
}

/// The devices of a backend; the CPU has one.
pub fn devices(backend: Backend) -> Result<Vec<Device>> {
    let mut count = 0;
    // SAFETY: count is writable.
    check(ptr::null_mut(), unsafe { sys::fa_device_count(backend as i32, &mut count) })?;
    (0..count)
        .map(|device| {
            // SAFETY: integers and bytes; all zero is a value of each.
            let mut info: sys::fa_device_info_t = unsafe { std::mem::zeroed() };
            info.struct_size = size_of::<sys::fa_device_info_t>() as u32;
            // SAFETY: info is a live struct of the size that it says.
            check(ptr::null_mut(), unsafe { sys::fa_device_info(backend as i32, device, &mut info) })?;
            let text = |bytes: &[std::os::raw::c_char]| text_of(&bytes.iter().map(|&byte| byte as u8).collect::<Vec<_>>());
            let (name, arch) = (text(&info.name), text(&info.arch));
            Ok(Device { device, compute_units: info.compute_units, memory_bytes: info.memory_bytes, name, arch })
        })
        .collect()
}

/// So many default values; an error where there is no memory for them.
pub(crate) fn room<T: Clone + Default>(n: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(n).map_err(|_| Error::OutOfMemory(format!("no memory for {n} values of {} bytes", size_of::<T>())))?;
    values.resize(n, T::default());
    Ok(values)
}

/// The slopes of ALiBi; `max_bias` 0: the usual 8.
pub fn alibi_slopes(heads: usize, max_bias: f32) -> Result<Vec<f32>> {
    // More than the library counts it refuses without a look at the room for them.
    let mut slopes = room(if heads <= i32::MAX as usize { heads } else { 0 })?;
    // SAFETY: there is room for so many slopes.
    check(ptr::null_mut(), unsafe { sys::fa_alibi_slopes(size(heads), max_bias, slopes.as_mut_ptr()) })?;
    Ok(slopes)
}

/// The dropout mask of rows × keys pairs, the same on every backend: true where a key is kept. `state` is (seed, offset); `batch_head` is
/// b · heads_q + h; rows and keys are ranges within the sequence.
pub fn dropout_mask(
    p: f32,
    state: (u64, u64),
    batch_head: usize,
    rows: std::ops::Range<usize>,
    keys: std::ops::Range<usize>,
) -> Result<Vec<bool>> {
    let pairs = rows.len().checked_mul(keys.len());
    let pairs = pairs.ok_or_else(|| invalid(format!("{} rows of {} keys are more than memory", rows.len(), keys.len())))?;
    let mut keep = room::<u8>(pairs)?;
    let (seed, offset) = state;
    // SAFETY: there is room for a byte of each pair.
    let status = unsafe {
        sys::fa_dropout_mask(
            p,
            seed,
            offset,
            size(batch_head),
            size(rows.start),
            size(rows.len()),
            size(keys.start),
            size(keys.len()),
            keep.as_mut_ptr(),
        )
    };
    check(ptr::null_mut(), status)?;
    Ok(keep.into_iter().map(|byte| byte != 0).collect())
}
