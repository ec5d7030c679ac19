//! Each call against attention as the textbook writes it, in f64; and what is refused.

use flashattn::{
    sys, Alignment, AppendKv, Attention, Backend, Backward, Bf16, Conversion, Element, Forward, Handle, ListSpace, Merge, Rotary,
    ScoresStage, F16,
};

fn cpu() -> Handle {
    Handle::with_backend(Backend::Cpu).unwrap()
}

/// Numbers in [-1, 1).
fn random(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / 8388608.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// One row over keys `step` elements apart; `keep` says which of them count.
fn plain_row(q: &[f32], k: &[f32], v: &[f32], keys: usize, step: usize, keep: impl Fn(usize) -> bool) -> Vec<f64> {
    let dim = q.len();
    let (mut sum, mut o) = (0.0, vec![0.0; dim]);
    for j in (0..keys).filter(|&j| keep(j)) {
        let score: f64 = (0..dim).map(|d| q[d] as f64 * k[j * step + d] as f64).sum();
        let p = (score / (dim as f64).sqrt()).exp();
        sum += p;
        (0..dim).for_each(|d| o[d] += p * v[j * step + d] as f64);
    }
    o.iter().map(|x| if sum > 0.0 { x / sum } else { 0.0 }).collect()
}

#[track_caller]
fn assert_near(got: &[f32], expected: &[f64], within: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((*a as f64 - b).abs() <= within, "element {i}: {a}, expected {b}");
    }
}

#[test]
fn latent_attention() {
    let (heads, keys, dim, dim_v) = (3, 4, 8, 6);
    let (q, fresh) = (random(heads * dim, 1), random(keys * dim, 2));
    let (mut k, mut o) = (vec![0.0f32; keys * dim], vec![0.0f32; heads * dim_v]);
    let shape = Attention::new().batch(1).heads_q(heads).heads_k(1).seqlen_q(1).seqlen_k(keys).dim_qk(dim).dim_v(dim_v).v_in_k();
    let mut handle = cpu();
    handle.append_kv(&shape, &AppendKv::new().k_new(&fresh).seqlen_new(keys).k(&mut k)).unwrap();
    handle.forward(&shape, &Forward::new().q(&q).k(&k).o(&mut o)).unwrap();
    for h in 0..heads {
        let row = plain_row(&q[h * dim..(h + 1) * dim], &fresh, &fresh, keys, dim, |_| true);
        assert_near(&o[h * dim_v..(h + 1) * dim_v], &row[..dim_v], 1e-6);
    }
}

#[test]
fn grouped_heads_masks_and_outputs() {
    let (batch, heads, kv, rows, keys, dim) = (2, 4, 2, 3, 5, 8);
    let (q, k, v) = (random(batch * rows * heads * dim, 1), random(batch * keys * kv * dim, 2), random(batch * keys * kv * dim, 3));
    let mask: Vec<u8> = (0..rows * keys).map(|i| (i % 3 != 1) as u8).collect();
    let (mut o, mut lse, mut scores) =
        (vec![7.0; q.len()], vec![7.0; batch * heads * rows], vec![7.0; batch * heads * rows * keys]);
    let shape = Attention::new().batch(batch).heads_q(heads).heads_k(kv).seqlen_q(rows).seqlen_k(keys).dim_qk(dim);
    let shape = shape.window(Some(3), None, Alignment::BottomRight).mask_stride([0, 0, keys, 1]);
    let shape = shape.scores_stage(ScoresStage::Probability).scores_stride([heads * rows * keys, rows * keys, keys, 1]);
    let call = Forward::new().q(&q).k(&k).v(&v).o(&mut o).lse(&mut lse).mask(&mask).scores(&mut scores);
    cpu().forward(&shape, &call).unwrap();
    for (b, i, h) in (0..batch).flat_map(|b| (0..rows).flat_map(move |i| (0..heads).map(move |h| (b, i, h)))) {
        let (at, first) = (((b * rows + i) * heads + h) * dim, (b * keys * kv + h * kv / heads) * dim);
        let keep = |j: usize| j + 3 >= i + keys - rows && mask[i * keys + j] != 0;
        let expected = plain_row(&q[at..at + dim], &k[first..], &v[first..], keys, kv * dim, keep);
        assert_near(&o[at..at + dim], &expected, 1e-5);
        let row = (b * heads + h) * rows + i;
        let sum: f32 = scores[row * keys..][..keys].iter().sum();
        assert!((sum - 1.0).abs() < 1e-5 && lse[row].is_finite());
    }
}

#[test]
fn halves_take_their_own_type_and_may_be_mixed() {
    let (q, k, v) = ([Bf16(0x3f80); 24], [F16(0x3c00); 24], [F16(0x4000); 24]);
    let mut o = [0.0f32; 24];
    let shape = Attention::new().batch(1).heads_q(2).seqlen_q(3).seqlen_k(3).dim_qk(4);
    let call = Forward::new().q(&q).k(&k).v(&v).o(&mut o);
    cpu().forward(&shape, &call).unwrap();
    assert_eq!(o, [2.0; 24]);
}

#[cfg(feature = "half")]
#[test]
fn the_types_of_the_crate_half_are_elements() {
    use half::{bf16, f16};
    let (x, mut o) = ([f16::from_f32(1.5); 24], [bf16::from_f32(0.0); 24]);
    let shape = Attention::new().batch(1).heads_q(2).seqlen_q(3).seqlen_k(3).dim_qk(4);
    cpu().forward(&shape, &Forward::new().q(&x).k(&x).v(&x).o(&mut o)).unwrap();
    assert_eq!(o, [bf16::from_f32(1.5); 24]);
}

#[test]
fn strides_are_the_callers() {
    // (batch, head, row, dim), and one k and v for both sequences.
    let (q, k, v) = (random(48, 1), random(32, 2), random(32, 3));
    let mut o = vec![0.0; 48];
    let shape = Attention::new().batch(2).heads_q(2).seqlen_q(3).seqlen_k(4).dim_qk(4);
    let shape = shape.q_stride([24, 4, 12, 1]).k_stride([0, 4, 16, 1]).v_stride([0, 4, 16, 1]).o_stride([24, 4, 12, 1]);
    cpu().forward(&shape, &Forward::new().q(&q).k(&k).v(&v).o(&mut o)).unwrap();
    for (row, at) in (0..48).step_by(4).enumerate() {
        let head = row / 3 % 2;
        assert_near(&o[at..at + 4], &plain_row(&q[at..at + 4], &k[head * 16..], &v[head * 16..], 4, 4, |_| true), 1e-6);
    }
}

#[test]
fn packed_sequences_and_their_gradients() {
    let (heads, dim, total) = (2, 8, 7);
    let (q, k, v, dout) = (random(112, 1), random(112, 2), random(112, 3), random(112, 4));
    let cu = [0, 3, 7];
    let (mut o, mut lse) = (vec![0.0; 112], vec![0.0; 14]);
    let shape = Attention::new().batch(2).heads_q(heads).total_q(total).total_k(total).seqlen_q(4).seqlen_k(4).dim_qk(dim);
    let shape = shape.causal(Alignment::TopLeft);
    let inputs = || Forward::new().q(&q).k(&k).v(&v).cu_seqlens_q(&cu).cu_seqlens_k(&cu);
    let mut handle = cpu();
    handle.forward(&shape, &inputs().o(&mut o).lse(&mut lse)).unwrap();

    let plain = |q: &[f32], k: &[f32], v: &[f32]| -> Vec<f64> {
        let row = |i: usize, h: usize| {
            let (begin, at) = (if i < 3 { 0 } else { 3 }, (i * heads + h) * dim);
            let first = (begin * heads + h) * dim;
            plain_row(&q[at..at + dim], &k[first..], &v[first..], i - begin + 1, heads * dim, |_| true)
        };
        (0..total).flat_map(|i| (0..heads).flat_map(move |h| row(i, h))).collect()
    };
    assert_near(&o, &plain(&q, &k, &v), 1e-5);

    let (mut dq, mut dk, mut dv) = (vec![0.0; 112], vec![0.0; 112], vec![0.0; 112]);
    let forward = inputs().computed(&o, &lse);
    handle.backward(&shape, &forward, &Backward::new().dout(&dout).dq(&mut dq).dk(&mut dk).dv(&mut dv)).unwrap();
    let loss = |q: &[f32], k: &[f32], v: &[f32]| -> f64 { plain(q, k, v).iter().zip(&dout).map(|(o, g)| o * *g as f64).sum() };
    for i in (0..112).step_by(9) {
        let slope = |at: usize| {
            let mut x = [q.clone(), k.clone(), v.clone()];
            let here = x[at][i];
            x[at][i] = here + 1e-3;
            let (above, right) = (loss(&x[0], &x[1], &x[2]), x[at][i]);
            x[at][i] = here - 1e-3;
            (above - loss(&x[0], &x[1], &x[2])) / (right as f64 - x[at][i] as f64)
        };
        for (at, gradient) in [&dq, &dk, &dv].iter().enumerate() {
            assert_near(&gradient[i..i + 1], &[slope(at)], 1e-4);
        }
    }

    // Added once more, the same is twice as much.
    let once = dq.clone();
    handle.backward(&shape, &forward, &Backward::new().dout(&dout).dq(&mut dq).accumulate()).unwrap();
    assert!(dq.iter().zip(&once).all(|(twice, once)| (twice - 2.0 * once).abs() <= 1e-6));
    let mut short = vec![F16(0); 112];
    let error = handle.backward(&shape, &forward, &Backward::new().dout(&dout).dv(&mut short)).unwrap_err();
    assert_eq!(error.message(), "dv has type f16: expected f32");
}

#[test]
fn tokens_appended_to_pages_are_attended() {
    let (heads, dim, page) = (2, 4, 2);
    let (mut k, mut v) = (vec![F16(0); 4 * page * heads * dim], vec![F16(0); 4 * page * heads * dim]);
    let (k_new, v_new, q) = (random(40, 1), random(40, 2), random(8, 3));
    let table = [3, 0, 2];
    let shape = Attention::new().batch(1).heads_q(heads).seqlen_q(1).seqlen_k(6).dim_qk(dim).page_size(page).num_pages(4);
    let mut handle = cpu();
    let mut append = |used: i32| {
        let new = AppendKv::new().k_new(&k_new).v_new(&v_new).seqlen_new(5).k(&mut k).v(&mut v);
        handle.append_kv(&shape, &new.page_table(&table).seqused_k(&[used]))
    };
    append(0).unwrap();
    assert!(append(2).unwrap_err().message().contains("seqlen_k is 6"));
    assert_ne!(k[3 * page * heads * dim], F16(0));
    let mut o = vec![0.0; 8];
    cpu().forward(&shape, &Forward::new().q(&q).k(&k).v(&v).o(&mut o).page_table(&table).seqused_k(&[5])).unwrap();
    for h in 0..heads {
        let expected = plain_row(&q[h * dim..(h + 1) * dim], &k_new[h * dim..], &v_new[h * dim..], 5, heads * dim, |_| true);
        assert_near(&o[h * dim..(h + 1) * dim], &expected, 2e-3); // f16 keys and values
    }
}

#[test]
fn parts_merge_into_the_whole() {
    let (q, k, v) = (random(24, 1), random(64, 2), random(64, 3));
    let (mut whole, mut parts, mut lses, mut merged) = (vec![0.0; 24], vec![0.0; 48], vec![0.0; 12], vec![0.0; 24]);
    let shape = Attention::new().batch(1).heads_q(2).seqlen_q(3).seqlen_k(8).dim_qk(4);
    let mut handle = cpu();
    handle.forward(&shape, &Forward::new().q(&q).k(&k).v(&v).o(&mut whole)).unwrap();
    for (part, (o, lse)) in parts.chunks_mut(24).zip(lses.chunks_mut(6)).enumerate() {
        let keys = 32 * part..32 * (part + 1);
        let call = Forward::new().q(&q).k(&k[keys.clone()]).v(&v[keys]).o(o).lse(lse);
        handle.forward(&shape.seqlen_k(4), &call).unwrap();
    }
    handle.merge(&shape, &Merge::new().parts(2).o_parts(&parts).lse_parts(&lses).o(&mut merged)).unwrap();
    assert_near(&merged, &whole.iter().map(|&x| x as f64).collect::<Vec<_>>(), 1e-6);
    let error = handle.merge(&shape, &Merge::new().parts(3).o_parts(&parts).lse_parts(&lses).o(&mut merged)).unwrap_err();
    assert_eq!(error.message(), "o_parts has 192 bytes: the call would use 288");
}

#[test]
fn rotary_turns_pairs_also_in_place() {
    let mut x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let (cos, sin, mut out) = ([1.0, 1.0, 0.0, -1.0], [0.0, 0.0, 1.0, 0.0], [0.0f32; 8]);
    let shape = Attention::new().batch(1).heads_q(1).seqlen_q(2).dim_qk(4);
    let tables = || Rotary::new().cos(&cos).sin(&sin).max_position(2).rotary_dim(4);
    cpu().rotary(&shape, &tables().x(&x).out(&mut out)).unwrap();
    assert_eq!(out, [1.0, 2.0, 3.0, 4.0, -7.0, -6.0, 5.0, -8.0]);
    cpu().rotary(&shape, &tables().in_place(&mut x)).unwrap();
    assert_eq!(x, out);
}

#[test]
fn rotary_of_packed_keys_of_a_type_of_their_own() {
    let shape = Attention::new().q_dtype(F16::DTYPE).batch(2).heads_q(4).heads_k(1).total_k(3).seqlen_k(2).dim_qk(2);
    let (x, mut out, starts) = ([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0f32; 6], [0, 2, 3]);
    let turn =
        Rotary::new().cos(&[1.0, 0.0]).sin(&[0.0, 1.0]).max_position(2).rotary_dim(2).x(&x).out(&mut out).cu_seqlens(&starts);
    assert_eq!(cpu().rotary(&shape, &turn).unwrap_err().message(), "x has type f32: expected f16");
    cpu().rotary(&shape, &turn.of_k()).unwrap();
    assert_eq!(out, [1.0, 2.0, -4.0, 3.0, 5.0, 6.0]);
}

#[test]
fn lists_name_slots_of_a_cache() {
    let (q, cache, mut o, mut word) = (random(8, 1), random(24, 2), [0.0f32; 8], [0u32]);
    let shape = Attention::new().batch(1).heads_q(2).heads_k(1).seqlen_q(1).dim_qk(4).page_size(2).num_pages(3);
    let shape = shape.list_space(ListSpace::Slots).list_max(3).list_heads(1).list_stride([0, 0, 3, 1]);
    let call = Forward::new().q(&q).k(&cache).v(&cache).o(&mut o).device_status(&mut word);
    cpu().forward(&shape, &call.key_list(&[4, 1, -1])).unwrap();
    for h in 0..2 {
        let row = plain_row(&q[4 * h..4 * h + 4], &cache, &cache, 6, 4, |slot| slot == 4 || slot == 1);
        assert_near(&o[4 * h..4 * h + 4], &row, 1e-6);
    }
    let call = Forward::new().q(&q).k(&cache).v(&cache).o(&mut o);
    assert!(cpu().forward(&shape, &call.key_list(&[6, 1, -1])).unwrap_err().message().contains("key_list"));
    assert_eq!(word, [0]);
}

#[test]
fn conversions_stay_within_their_slices() {
    let (x, mut out, mut zeros) = ([F16(0x3c00), F16(0x4000), F16(0x4200)], [1.0f32; 3], [7i8; 2]);
    let add = |x| Conversion::new([1, 1, 1, 3]).x(x, [0, 0, 0, 1]).accumulate();
    let clear = Conversion::new([1, 1, 1, 2]).out(&mut zeros, [0, 0, 0, 1]);
    cpu().convert(&[add(&x).out(&mut out, [0, 0, 0, 1]), clear]).unwrap();
    assert_eq!((out, zeros), ([2.0, 3.0, 4.0], [0, 0]));
    let mut refused = |x, size, stride| {
        let one = Conversion::new([1, size, 1, 1]).x(x, [0, 1, 0, 1]).out(&mut out, [0, stride, 0, 1]);
        cpu().convert(&[one]).unwrap_err().message().to_string()
    };
    assert_eq!(refused(&x[..], 4, 0), "x has 6 bytes: the call would use 8");
    assert_eq!(refused(&x, 3, 2), "out has 12 bytes: the call would use 20");
    assert!(refused(&x, 3, usize::MAX).contains("out has 12 bytes"));
    assert!(refused(&x, 3, 0).contains("out_stride"));
    assert_eq!(out, [2.0, 3.0, 4.0]);
}

/// Random shapes over slices that are exact, or too short by little: what is accepted writes nothing beyond its outputs.
#[test]
fn what_is_accepted_stays_within_its_slices() {
    let mut state = 1u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let (mut accepted, mut handle) = (0, cpu());
    for _ in 0..400 {
        let (batch, heads_k, rows, keys, dim) = (below(3), 1 + below(2), below(4), below(5), 1 + below(9));
        let heads = heads_k * (1 + below(3));
        let shape = Attention::new().batch(batch).heads_q(heads).heads_k(heads_k).seqlen_q(rows).seqlen_k(keys).dim_qk(dim);
        let mut cut = |n: usize| if below(12) == 0 { n.saturating_sub(1 + below(2)) } else { n };
        let (q_len, k_len, lengths) = (batch * rows * heads * dim, batch * keys * heads_k * dim, batch);
        let sizes = [cut(q_len), cut(k_len), cut(k_len), cut(q_len), cut(batch * heads * rows), cut(lengths)];
        let (x, used) = (vec![0.5f32; q_len.max(k_len)], vec![keys as i32; lengths]);
        let (mut o, mut lse) = (vec![7.0f32; q_len + 8], vec![7.0f32; batch * heads * rows + 8]);
        let call = Forward::new().q(&x[..sizes[0]]).k(&x[..sizes[1]]).v(&x[..sizes[2]]).seqused_k(&used[..sizes[5]]);
        let done = handle.forward(&shape, &call.o(&mut o[4..4 + sizes[3]]).lse(&mut lse[4..4 + sizes[4]]));
        let whole = sizes == [q_len, k_len, k_len, q_len, batch * heads * rows, lengths];
        assert_eq!(done.is_ok(), whole, "{done:?}");
        let outside = |x: &[f32], n: usize| x[..4].iter().chain(&x[4 + n..]).all(|&value| value == 7.0);
        assert!(outside(&o, sizes[3]) && outside(&lse, sizes[4]));
        assert!(whole || o.iter().chain(&lse).all(|&value| value == 7.0), "refused, and written");
        accepted += whole as usize;
    }
    assert!((100..400).contains(&accepted), "{accepted}");
}

#[test]
fn a_slice_that_is_too_short_or_of_another_type_is_refused_untouched() {
    let (good, short, half) = ([1.0f32; 24], [1.0f32; 23], [F16(0); 24]);
    let shape = Attention::new().batch(1).heads_q(2).seqlen_q(3).seqlen_k(3).dim_qk(4);
    let mut o = [7.0f32; 24];
    let mut refuse =
        |shape: &Attention, q: &[f32], k: &[f32]| cpu().forward(shape, &Forward::new().q(q).k(k).v(&good).o(&mut o)).unwrap_err();
    assert_eq!(refuse(&shape, &good, &short).to_string(), "FA_INVALID_ARGUMENT: k has 92 bytes: the call would use 96");
    assert_eq!(refuse(&shape, &short, &good).message(), "q has 92 bytes: the call would use 96");
    assert_eq!(refuse(&shape.batch(usize::MAX), &good, &good).status(), sys::FA_INVALID_ARGUMENT);
    assert!(refuse(&shape.softcap(-1.0), &good, &good).message().contains("softcap"));
    assert_eq!(o, [7.0; 24]);
    let call = Forward::new().q(&good).k(&half).v(&half).o(&mut o);
    assert_eq!(cpu().forward(&shape.k_dtype(f32::DTYPE), &call).unwrap_err().message(), "k has type f16: expected f32");
    cpu().forward(&shape, &Forward::new().q(&good).k(&good).v(&good).o(&mut o)).unwrap();
    assert_eq!(o, [1.0; 24]);
}
