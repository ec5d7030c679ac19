use flashattn::{sys, Alignment, Attention, Backend, Error, Handle, F16};

fn shape() -> Attention {
    Attention { batch: 1, heads_q: 2, seqlen_q: 3, seqlen_k: 3, dim_qk: 4, ..Attention::default() }
}

fn assert_close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "element {i}: {a}, expected {b}");
    }
}

#[test]
fn the_library_is_this_version_or_a_later_one_of_its_soname() {
    assert!(flashattn::version() >= sys::FA_VERSION);
    assert_eq!(flashattn::version() / 10000, sys::FA_VERSION_MAJOR);
    let package = format!("{}.{}.{}", sys::FA_VERSION_MAJOR, sys::FA_VERSION_MINOR, sys::FA_VERSION_PATCH);
    assert_eq!(package, env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_default_struct_is_what_the_library_makes() {
    let ours = sys::fa_attention_desc_t::default();
    let mut theirs = sys::fa_attention_desc_t { batch: 7, ..ours };
    assert_eq!(unsafe { sys::fa_attention_desc_init(&mut theirs, ours.struct_size) }, sys::FA_OK);
    let bytes = |d: &sys::fa_attention_desc_t| unsafe {
        std::slice::from_raw_parts((d as *const sys::fa_attention_desc_t).cast::<u8>(), std::mem::size_of_val(d)).to_vec()
    };
    assert_eq!(bytes(&ours), bytes(&theirs));
}

#[test]
fn the_first_causal_row_is_the_first_value() {
    let q: Vec<f32> = (0..24).map(|i| i as f32 / 7.0).collect();
    let v: Vec<f32> = (0..24).map(|i| (i * i % 11) as f32).collect();
    let (mut o, mut lse) = (vec![0.0; 24], vec![0.0; 6]);
    let mut handle = Handle::new().unwrap();
    handle.attention_with_lse(&shape().causal(Alignment::BottomRight), &q, &q, &v, &mut o, &mut lse).unwrap();
    assert_eq!(o[..8], v[..8]);
    // LSE is [head][row]: one key, so the score itself, scaled by 1 / sqrt(4).
    let score: f32 = q[4..8].iter().map(|x| x * x).sum::<f32>() / 2.0;
    assert_close(&lse[3..4], &[score]);
}

#[test]
fn halves_take_their_own_type() {
    let one = F16(0x3c00);
    let mut o = [F16(0); 24];
    Handle::with_backend(Backend::Cpu).unwrap().attention(&shape(), &[one; 24], &[one; 24], &[one; 24], &mut o).unwrap();
    assert_eq!(o, [one; 24]);
}

#[test]
fn a_window_and_a_scale_act() {
    let q: Vec<f32> = (0..24).map(|i| i as f32 / 7.0).collect();
    let v: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let mut handle = Handle::new().unwrap();
    let mut o = vec![0.0; 24];
    let own_key = Attention { window: Some((Some(0), Some(0))), alignment: Some(Alignment::TopLeft), ..shape() };
    handle.attention(&own_key, &q, &q, &v, &mut o).unwrap();
    assert_close(&o, &v);
    handle.attention(&Attention { scale: Some(0.0), ..shape() }, &q, &q, &v, &mut o).unwrap();
    assert_close(&o[..8], &v[8..16]);
}

#[test]
fn a_slice_of_the_wrong_length_is_refused_before_the_call() {
    let (good, short) = ([1.0f32; 24], [1.0f32; 23]);
    let mut o = [0.0f32; 24];
    let error = Handle::new().unwrap().attention(&shape(), &good, &short, &good, &mut o).unwrap_err();
    assert_eq!(error, Error { status: 10, message: "k has 23 elements, but its shape is [1, 3, 2, 4]".into() });
    assert_eq!(o, [0.0; 24]);
    let huge = Attention { batch: usize::MAX, ..shape() };
    assert_eq!(Handle::new().unwrap().attention(&huge, &good, &good, &good, &mut o).unwrap_err().status, 10);
}

#[test]
fn every_slice_is_checked_and_nothing_is_touched() {
    let mut handle = Handle::new().unwrap();
    let shape =
        Attention { batch: 2, heads_q: 4, heads_k: 2, seqlen_q: 3, seqlen_k: 5, dim_qk: 4, dim_v: 3, ..Attention::default() };
    let right = [96, 80, 60, 72, 24]; // q, k, v, o, lse
    for which in 0..right.len() {
        for change in [-1, 1] {
            let mut lengths = right;
            lengths[which] += change;
            let [q, k, v] = [0, 1, 2].map(|i| vec![1.0f32; lengths[i] as usize]);
            let (mut o, mut lse) = (vec![7.0f32; lengths[3] as usize], vec![7.0f32; lengths[4] as usize]);
            let error = handle.attention_with_lse(&shape, &q, &k, &v, &mut o, &mut lse).unwrap_err();
            assert_eq!(error.status, sys::FA_INVALID_ARGUMENT, "{error}");
            assert!(error.message.starts_with(["q", "k", "v", "o", "lse"][which]), "{error}");
            assert!(o.iter().chain(&lse).all(|&x| x == 7.0));
        }
    }
}

#[test]
fn an_error_of_the_library_carries_its_sentence() {
    let x = [1.0f32; 24];
    let mut o = [0.0f32; 24];
    let mut handle = Handle::new().unwrap();
    let error = handle.attention(&Attention { softcap: -1.0, ..shape() }, &x, &x, &x, &mut o).unwrap_err();
    assert_eq!(error.status, sys::FA_INVALID_ARGUMENT);
    assert!(error.message.contains("softcap"), "{error}");
    assert!(error.to_string().starts_with("FA_INVALID_ARGUMENT: "), "{error}");
    handle.attention(&shape(), &x, &x, &x, &mut o).unwrap();
    assert_close(&o, &x);
}

#[test]
fn parameters_are_set_and_read() {
    let mut handle = Handle::with_backend(Backend::Cpu).unwrap();
    assert_eq!(handle.backend().unwrap(), Backend::Cpu);
    handle.set(sys::FA_PARAM_THREADS, 2).unwrap();
    assert_eq!(handle.get(sys::FA_PARAM_THREADS).unwrap(), 2);
    assert_eq!(handle.set(sys::FA_PARAM_THREADS, -1).unwrap_err().status, sys::FA_INVALID_ARGUMENT);
}

#[test]
fn a_handle_moves_to_another_thread() {
    let mut handle = Handle::new().unwrap();
    let o = std::thread::spawn(move || {
        let x = [1.0f32; 24];
        let mut o = [0.0f32; 24];
        handle.attention(&shape(), &x, &x, &x, &mut o).map(|()| o)
    });
    assert_close(&o.join().unwrap().unwrap(), &[1.0; 24]);
}
