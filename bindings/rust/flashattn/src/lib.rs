//! FlashAttention: `o = softmax(scale · q kᵀ, masked) v`, without storing the score matrix.
//!
//! An [`Attention`] says what is computed. A [`Forward`] says where the data is. A [`Handle`] owns backend, threads and scratch memory.
//! Names are those of the C header. Its documentation is in [`sys`].
//!
//! ```
//! use flashattn::{Alignment, Attention, Forward, Handle};
//! let (q, k, v) = ([0.5f32; 24], [0.25f32; 24], [2.0f32; 24]);
//! let mut o = [0.0f32; 24]; // [batch][row][head][dim]
//! let shape = Attention::new().batch(1).heads_q(2).seqlen_q(3).seqlen_k(3).dim_qk(4).causal(Alignment::TopLeft);
//! Handle::new()?.forward(&shape, &Forward::new().q(&q).k(&k).v(&v).o(&mut o))?;
//! assert_eq!(o[..8], v[..8]); // the first row of each head sees one key
//! # Ok::<(), flashattn::Error>(())
//! ```
//!
//! Decoding from a paged cache. Each step first appends its token:
//!
//! ```
//! use flashattn::{AppendKv, Attention, Forward, Handle};
//! let shape = Attention::new().batch(1).heads_q(4).heads_k(2).dim_qk(8).seqlen_q(1).seqlen_k(64).page_size(16).num_pages(100);
//! let (mut k, mut v) = (vec![0.0f32; 100 * 16 * 2 * 8], vec![0.0f32; 100 * 16 * 2 * 8]); // [page][slot][head][dim]
//! let (page_table, mut used) = ([7, 3, 0, 0], [0]);
//! let mut handle = Handle::new()?;
//! for step in 0..20 {
//!     let (token, q, mut o) = ([step as f32; 2 * 8], [1.0f32; 4 * 8], [0.0f32; 4 * 8]);
//!     let new = AppendKv::new().k_new(&token).v_new(&token).seqlen_new(1).k(&mut k).v(&mut v);
//!     handle.append_kv(&shape, &new.page_table(&page_table).seqused_k(&used))?;
//!     used[0] += 1;
//!     let call = Forward::new().q(&q).k(&k).v(&v).o(&mut o).page_table(&page_table).seqused_k(&used);
//!     handle.forward(&shape, &call)?;
//!     assert!(o[0] <= step as f32 && o[0] >= step as f32 / 2.0);
//! }
//! # Ok::<(), flashattn::Error>(())
//! ```

#![warn(missing_docs)]

pub use flashattn_sys as sys;

mod attention;
mod calls;
mod convert;
#[cfg(feature = "cp")]
pub mod cp;
mod element;
mod error;
mod handle;
mod helpers;
mod pinned;

pub use attention::{Algorithm, Alignment, Attention, Backend, Dtype, ListSpace, LogLevel, Op, Precision, ScoresStage, ThreadPool};
pub use calls::{AppendKv, Backward, Computed, Forward, Inputs, Merge, Rotary};
pub use convert::Conversion;
pub use element::{
    Bf16, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, E2M1x2, Element, I4x2, U4x2, E4M3, E5M2, E8M0, F16,
};
pub use error::{Error, Result};
pub use handle::{Builder, Handle, OpenHandle};
pub use helpers::{alibi_slopes, backend_status, backend_supports, devices, dropout_mask, version, Device};
