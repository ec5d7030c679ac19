//! One causal attention on two ranks, which are threads here: `cargo run --features cp --example context_parallel`. Between processes only
//! the transport is another.

#[path = "../tests/threads/mod.rs"]
mod threads;

use flashattn::cp::{ContextParallel, Layout, Lengths, Spread};
use flashattn::{Alignment, Attention, Forward, Handle};
use std::thread;
use std::time::Duration;

const ROWS: usize = 4096;
const HEADS: usize = 8;
const DIM: usize = 64;

fn main() {
    let ranks: Vec<_> = threads::Seat::all(2).into_iter().map(|seat| thread::spawn(move || work(seat))).collect();
    for rank in ranks {
        println!("{}", rank.join().expect("no panic").expect("no failure"));
    }
}

fn work(seat: threads::Seat) -> flashattn::Result<String> {
    let spread = Spread::rows(Layout::Zigzag);
    let mine = spread.partition(seat.rank, seat.ranks, Lengths::Each { batch: 1, rows: ROWS })?;
    let rows: usize = mine.iter().map(|range| range.rows as usize).sum();
    let x = vec![0.5f32; rows * HEADS * DIM]; // this rank's rows of q, k and v
    let mut o = vec![0.0f32; rows * HEADS * DIM];
    let shape = Attention::new().batch(1).heads_q(HEADS).seqlen_q(ROWS).seqlen_k(ROWS).dim_qk(DIM).causal(Alignment::TopLeft);
    let mut cp = ContextParallel::new(Handle::new()?, seat, Some(Duration::from_secs(60)))?;
    let call = Forward::new().q(&x).k(&x).v(&x).o(&mut o);
    let words = cp.explain(&shape, &spread, &call)?;
    cp.forward(&shape, &spread, &call)?;
    Ok(words)
}
