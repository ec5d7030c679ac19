//! `flashattn_cp.h`, as far as its transports have host memory: one attention over several ranks.
#![allow(non_camel_case_types, missing_docs)]

use std::mem::size_of;
use std::os::raw::{c_char, c_void};

use crate::{fa_attention_desc_t, fa_backward_args_t, fa_forward_args_t, fa_handle_t, fa_status_t};

pub const FA_CP_SEND: i32 = 1;
pub const FA_CP_RECEIVE: i32 = 2;
pub const FA_CP_SHARD_ROWS: i32 = 1;
pub const FA_CP_SHARD_KEYS: i32 = 2;
pub const FA_CP_LAYOUT_CONTIGUOUS: i32 = 0;
pub const FA_CP_LAYOUT_ZIGZAG: i32 = 1;
pub const FA_CP_METHOD_AUTO: i32 = 0;
pub const FA_CP_METHOD_ULYSSES: i32 = 1;
pub const FA_CP_METHOD_ALL_GATHER: i32 = 2;
pub const FA_CP_METHOD_RING: i32 = 3;
pub const FA_CP_METHOD_MERGE: i32 = 4;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_cp_message_t {
    pub peer: i32,
    pub direction: i32,
    pub bytes: u64,
    pub data: *mut c_void,
    pub tag: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_cp_transport_t {
    pub struct_size: u32,
    pub flags: u32,
    pub rank: i32,
    pub ranks: i32,
    pub user: *mut c_void,
    pub start: Option<unsafe extern "C" fn(*mut c_void, *const fa_cp_message_t, i64, *mut u64) -> fa_status_t>,
    pub wait: Option<unsafe extern "C" fn(*mut c_void, u64, i64) -> fa_status_t>,
    pub all_gather: Option<unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, u64, *mut u64) -> fa_status_t>,
    pub abandon: Option<unsafe extern "C" fn(*mut c_void)>,
    pub enter: Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> fa_status_t>,
    pub leave: Option<unsafe extern "C" fn(*mut c_void) -> fa_status_t>,
    pub gather_host: Option<unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, u64, i64) -> fa_status_t>,
    pub synchronize: Option<unsafe extern "C" fn(*mut c_void, i64) -> fa_status_t>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_cp_create_info_t {
    pub struct_size: u32,
    pub flags: u32,
    pub transport: *const fa_cp_transport_t,
    pub timeout_ms: i64,
    pub link_bytes_per_second: f64,
    pub link_seconds: f64,
    pub flops_per_second: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fa_cp_desc_t {
    pub struct_size: u32,
    pub flags: u32,
    pub shard: i32,
    pub layout: i32,
    pub method: i32,
    pub head_chunk: i32,
    pub block: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct fa_cp_range_t {
    pub sequence: i64,
    pub begin: i64,
    pub rows: i64,
    pub local: i64,
}

#[repr(C)]
pub struct fa_cp_s {
    _private: [u8; 0],
}
pub type fa_cp_t = *mut fa_cp_s;

extern "C" {
    pub fn fa_cp_create(cp: *mut fa_cp_t, handle: fa_handle_t, info: *const fa_cp_create_info_t) -> fa_status_t;
    pub fn fa_cp_destroy(cp: fa_cp_t) -> fa_status_t;
    pub fn fa_cp_last_error(cp: fa_cp_t) -> *const c_char;
    pub fn fa_cp_partition(
        spread: *const fa_cp_desc_t,
        rank: i32,
        ranks: i32,
        cu_seqlens: *const i32,
        batch: i64,
        seqlen: i64,
        ranges: *mut fa_cp_range_t,
        capacity: i64,
        count: *mut i64,
    ) -> fa_status_t;
    pub fn fa_cp_forward(
        cp: fa_cp_t,
        desc: *const fa_attention_desc_t,
        spread: *const fa_cp_desc_t,
        args: *const fa_forward_args_t,
    ) -> fa_status_t;
    pub fn fa_cp_backward(
        cp: fa_cp_t,
        desc: *const fa_attention_desc_t,
        spread: *const fa_cp_desc_t,
        args: *const fa_backward_args_t,
    ) -> fa_status_t;
    pub fn fa_cp_explain(
        cp: fa_cp_t,
        desc: *const fa_attention_desc_t,
        spread: *const fa_cp_desc_t,
        op: i32,
        args: *const c_void,
        text: *mut c_char,
        n: u64,
    ) -> fa_status_t;
    pub fn fa_cp_synchronize(cp: fa_cp_t) -> fa_status_t;
    pub fn fa_cp_traffic(cp: fa_cp_t, bytes_sent: *mut u64, messages_sent: *mut u64) -> fa_status_t;
}

const _: () = assert!(size_of::<fa_cp_message_t>() == 32 && size_of::<fa_cp_range_t>() == 32);

macro_rules! sized {
    ($($name:ident: $bytes:literal;)*) => {$(
        const _: () = assert!(size_of::<$name>() == $bytes);
        impl Default for $name {
            /// What the `_INIT` macro of the header gives: all zero but for `struct_size`.
            fn default() -> Self {
                // SAFETY: integers, raw pointers and optional functions; all zero is a value of each.
                let mut zero: Self = unsafe { std::mem::zeroed() };
                zero.struct_size = size_of::<Self>() as u32;
                zero
            }
        }
    )*};
}
sized! {
    fa_cp_transport_t: 88;
    fa_cp_create_info_t: 48;
    fa_cp_desc_t: 32;
}
