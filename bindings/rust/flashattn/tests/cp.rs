//! Ranks that are threads, against one handle.
#![cfg(feature = "cp")]
// Threads that are joined as they are made would wait for others that are not there yet.
#![allow(clippy::needless_collect)]

mod threads;

use flashattn::cp::{Arrival, ContextParallel, Failure, Incoming, Layout, Lengths, Method, Outgoing, Range, Spread, Transport};
use flashattn::{Alignment, Attention, Backward, Error, Forward, Handle, Result};
use std::thread;
use std::time::Duration;
use threads::Seat;

const HEADS: usize = 8;
const HEADS_K: usize = 4;
const DIM: usize = 16;
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn attention(rows: usize) -> Attention {
    Attention::new().batch(1).heads_q(HEADS).heads_k(HEADS_K).seqlen_q(rows).seqlen_k(rows).dim_qk(DIM).causal(Alignment::TopLeft)
}

fn rank_of(seat: impl Transport + Send + 'static, limit: Option<Duration>) -> Result<ContextParallel> {
    let mut handle = Handle::new()?;
    handle.set(flashattn::sys::FA_PARAM_THREADS, 1)?;
    ContextParallel::new(handle, seat, limit)
}

/// Rows of a tensor with so many numbers each, and back.
fn cut(whole: &[f32], ranges: &[Range], row: usize) -> Vec<f32> {
    ranges.iter().flat_map(|r| whole[r.begin as usize * row..(r.begin + r.rows) as usize * row].to_vec()).collect()
}
fn put(whole: &mut [f32], ranges: &[Range], row: usize, own: &[f32]) {
    for r in ranges {
        let (from, n) = (r.local as usize * row, r.rows as usize * row);
        whole[r.begin as usize * row..][..n].copy_from_slice(&own[from..from + n]);
    }
}

fn near(name: &str, got: &[f32], want: &[f32]) {
    let error: f64 = got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let norm: f64 = want.iter().map(|b| f64::from(*b).powi(2)).sum();
    assert!(error <= 1e-10 * norm, "{name}: {error} of {norm}");
}

#[test]
fn every_method_gives_what_one_handle_gives() {
    const ROWS: usize = 61;
    let (q_row, k_row) = (HEADS * DIM, HEADS_K * DIM);
    let (q, k, v, dout) = (numbers(ROWS * q_row, 1), numbers(ROWS * k_row, 2), numbers(ROWS * k_row, 3), numbers(ROWS * q_row, 4));
    let (mut o, mut lse) = (vec![0.0; ROWS * q_row], vec![0.0; ROWS * HEADS]);
    let (mut dq, mut dk, mut dv) = (vec![0.0; ROWS * q_row], vec![0.0; ROWS * k_row], vec![0.0; ROWS * k_row]);
    let mut one = Handle::new().unwrap();
    one.forward(&attention(ROWS), &Forward::new().q(&q).k(&k).v(&v).o(&mut o).lse(&mut lse)).unwrap();
    let inputs = Forward::new().q(&q).k(&k).v(&v).computed(&o, &lse);
    one.backward(&attention(ROWS), &inputs, &Backward::new().dout(&dout).dq(&mut dq).dk(&mut dk).dv(&mut dv)).unwrap();

    for method in [Method::Ulysses, Method::AllGather, Method::Ring] {
        for layout in [Layout::Contiguous, Layout::Zigzag] {
            for ranks in [1, 2, 4] {
                let spread = Spread::rows(layout).method(method);
                let parts: Vec<_> = thread::scope(|scope| {
                    let seats = Seat::all(ranks).into_iter();
                    let (q, k, v, dout) = (&q, &k, &v, &dout);
                    let work = move |seat: Seat| {
                        let rank = seat.rank;
                        let mine = spread.partition(rank, ranks, Lengths::Each { batch: 1, rows: ROWS }).unwrap();
                        let rows: usize = mine.iter().map(|r| r.rows as usize).sum();
                        let (q, dout) = (cut(q, &mine, q_row), cut(dout, &mine, q_row));
                        let (k, v) = (cut(k, &mine, k_row), cut(v, &mine, k_row));
                        let (mut o, mut lse) = (vec![0.0; rows * q_row], vec![0.0; rows * HEADS]);
                        let (mut dq, mut dk, mut dv) = (vec![0.0; rows * q_row], vec![0.0; rows * k_row], vec![0.0; rows * k_row]);
                        let nameless = layout == Layout::Zigzag;
                        let mut cp = if nameless { rank_of(Nameless(seat), LIMIT) } else { rank_of(seat, LIMIT) }.unwrap();
                        let call = Forward::new().q(&q).k(&k).v(&v).o(&mut o).lse(&mut lse);
                        let words = cp.explain(&attention(ROWS), &spread, &call).unwrap();
                        cp.forward(&attention(ROWS), &spread, &call).unwrap();
                        assert!(ranks == 1 || (cp.traffic().0 > 0 && words.contains("it sends")), "{words}");
                        let inputs = Forward::new().q(&q).k(&k).v(&v).computed(&o, &lse);
                        let call = Backward::new().dout(&dout).dq(&mut dq).dk(&mut dk).dv(&mut dv);
                        cp.backward(&attention(ROWS), &spread, &inputs, &call).unwrap();
                        (mine, o, dq, dk, dv)
                    };
                    let running: Vec<_> = seats.map(|seat| scope.spawn(move || work(seat))).collect();
                    running.into_iter().map(|rank| rank.join().unwrap()).collect()
                });
                let mut got = [vec![0.0; ROWS * q_row], vec![0.0; ROWS * q_row], vec![0.0; ROWS * k_row], vec![0.0; ROWS * k_row]];
                for (mine, o, dq, dk, dv) in &parts {
                    for ((whole, own), row) in got.iter_mut().zip([o, dq, dk, dv]).zip([q_row, q_row, k_row, k_row]) {
                        put(whole, mine, row, own);
                    }
                }
                for ((name, got), want) in ["o", "dq", "dk", "dv"].into_iter().zip(&got).zip([&o, &dq, &dk, &dv]) {
                    near(&format!("{name} of {method:?}, {layout:?}, {ranks} ranks"), got, want);
                }
            }
        }
    }
}

/// A rank whose groups all have one number, by which nobody could tell them apart.
struct Nameless(Seat);

impl Transport for Nameless {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn ranks(&self) -> usize {
        self.0.ranks()
    }
    fn start(&mut self, outgoing: &[Outgoing<'_>], incoming: &[Incoming]) -> std::result::Result<u64, Failure> {
        self.0.start(outgoing, incoming).map(|_| 7)
    }
    fn wait(&mut self, group: u64, arrivals: &mut [Arrival<'_>], limit: Option<Duration>) -> std::result::Result<(), Failure> {
        assert_eq!(group, 7);
        self.0.wait(group, arrivals, limit)
    }
}

#[test]
fn a_handle_of_a_rank_serves_alone_too() {
    let (x, mut o, mut spread) = (numbers(8 * HEADS * DIM, 1), vec![0.0f32; 8 * HEADS * DIM], vec![0.0f32; 8 * HEADS * DIM]);
    let mut cp = rank_of(Seat::all(1).remove(0), LIMIT).unwrap();
    let shape = attention(8).heads_k(HEADS);
    cp.handle().forward(&shape, &Forward::new().q(&x).k(&x).v(&x).o(&mut o)).unwrap();
    cp.forward(&shape, &Spread::rows(Layout::Contiguous), &Forward::new().q(&x).k(&x).v(&x).o(&mut spread)).unwrap();
    assert_eq!(o, spread);
}

#[test]
fn counts_of_ranges_are_known_before_there_is_room_for_them() {
    let spread = Spread::rows(Layout::Zigzag);
    assert_eq!(spread.partition(0, 2, Lengths::Each { batch: i32::MAX as usize, rows: 0 }).unwrap(), []);
    let refused = spread.partition(0, 2, Lengths::Each { batch: usize::MAX, rows: 8 }).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
}

/// Both ranks' statuses of a forward of 8 rows each, which `change` may spoil for one of them.
fn two_ranks(limit: Duration, comes: [bool; 2], shape: impl Fn(usize) -> Attention + Sync) -> [Option<Result<()>>; 2] {
    let spread = Spread::rows(Layout::Contiguous).method(Method::AllGather);
    let run = |seat: Seat| {
        let rank = seat.rank;
        let (q, k, mut o) = (numbers(8 * HEADS * DIM, 1), numbers(8 * HEADS_K * DIM, 2), vec![0.0f32; 8 * HEADS * DIM]);
        comes[rank].then(|| {
            let mut cp = rank_of(seat, Some(limit))?;
            cp.forward(&shape(rank), &spread, &Forward::new().q(&q).k(&k).v(&k).o(&mut o))
        })
    };
    let mut results = thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> = Seat::all(2).into_iter().map(|seat| scope.spawn(move || run(seat))).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>().into_iter()
    });
    [results.next().unwrap(), results.next().unwrap()]
}

#[test]
fn ranks_that_differ_hear_of_it() {
    let results =
        two_ranks(Duration::from_secs(20), [true; 2], |rank| if rank == 0 { attention(16) } else { attention(16).softcap(3.0) });
    for result in results {
        assert!(matches!(result, Some(Err(Error::PeersDisagree(_)))), "{result:?}");
    }
}

#[test]
fn a_rank_that_refuses_its_slices_tells_the_other() {
    // Of 16 rows a rank has 8, as many as the slices; of 20 it has 10.
    let [first, second] = two_ranks(Duration::from_secs(20), [true; 2], |rank| attention(if rank == 0 { 16 } else { 20 }));
    assert!(matches!(first, Some(Err(Error::PeerFailed(_)))), "{first:?}");
    assert!(matches!(second, Some(Err(Error::InvalidArgument(_)))), "{second:?}");
}

#[test]
fn a_rank_that_does_not_come_is_a_timeout() {
    let [first, _] = two_ranks(Duration::from_millis(200), [true, false], |_| attention(16));
    assert!(matches!(first, Some(Err(Error::Timeout(_)))), "{first:?}");
}

/// A transport whose start panics.
struct Broken;

impl Transport for Broken {
    fn rank(&self) -> usize {
        0
    }
    fn ranks(&self) -> usize {
        2
    }
    fn start(&mut self, _: &[Outgoing<'_>], _: &[Incoming]) -> std::result::Result<u64, Failure> {
        panic!("broken wires")
    }
    fn wait(&mut self, _: u64, _: &mut [Arrival<'_>], _: Option<Duration>) -> std::result::Result<(), Failure> {
        Ok(())
    }
}

#[test]
fn a_panic_goes_on_behind_the_library() {
    let (q, k, mut o) = (numbers(8 * HEADS * DIM, 1), numbers(8 * HEADS_K * DIM, 2), vec![0.0f32; 8 * HEADS * DIM]);
    let mut cp = rank_of(Broken, LIMIT).unwrap();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cp.forward(&attention(16), &Spread::rows(Layout::Contiguous), &Forward::new().q(&q).k(&k).v(&k).o(&mut o))
    }));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"broken wires"));
    let again = cp.forward(&attention(16), &Spread::rows(Layout::Contiguous), &Forward::new().q(&q).k(&k).v(&k).o(&mut o));
    assert!(matches!(again, Err(Error::InvalidState(_))), "{again:?}");
}
