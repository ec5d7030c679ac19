//! Causal attention, two heads over four positions: the same numbers as examples/minimal.c.

use flashattn::{Alignment, Attention, Forward, Handle};

const ROWS: usize = 4;
const HEADS: usize = 2;
const DIM: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fill = |value: fn(usize) -> f32| (0..ROWS * HEADS * DIM).map(value).collect::<Vec<f32>>();
    let q = fill(|i| (i % 7) as f32 / 4.0);
    let k = fill(|i| (i % 5) as f32 / 4.0);
    let v = fill(|i| i as f32 / 8.0);
    let mut o = vec![0.0f32; q.len()];

    let shape = Attention::new().batch(1).heads_q(HEADS).seqlen_q(ROWS).seqlen_k(ROWS).dim_qk(DIM).causal(Alignment::TopLeft);
    Handle::new()?.forward(&shape, &Forward::new().q(&q).k(&k).v(&v).o(&mut o))?;

    for (i, head) in o.chunks(DIM).enumerate() {
        println!("row {} head {}: {:.4} {:.4}", i / HEADS, i % HEADS, head[0], head[1]);
    }
    Ok(())
}
