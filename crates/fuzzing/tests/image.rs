//! Whole pools with hostile contents. The inputs are the corpus and seeded changes: `ZUSE_IMAGES` sets their number (150 by default; ten
//! thousand take some ten minutes), `ZUSE_IMAGES_FROM` the first seed, to repeat one.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Instant;

use fuzzing::image::fuzz_image;
use fuzzing::mutate::Rng;
use support::{corpus, number, run, watch};

fn input(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed.wrapping_mul(0x1_0001));
    let changes = 1 + rng.below(12);
    let mut data = vec![rng.next_u64() as u8];
    for _ in 0..changes {
        data.extend(rng.next_u64().to_le_bytes());
    }
    data
}

#[test]
fn hostile_pools_do_no_harm() {
    watch("image");
    let (count, from) = (number("ZUSE_IMAGES", 150), number("ZUSE_IMAGES_FROM", 0));
    let mut wrong = Vec::new();
    // the unchanged pools first: building them takes memory that must not count against an input
    (0..5).for_each(|which| fuzz_image(&[which]));
    for (path, data) in corpus("image") {
        wrong.extend(run("image", fuzz_image, &data, &path));
    }
    let start = Instant::now();
    for seed in from..from + count {
        wrong.extend(run("image", fuzz_image, &input(seed), &format!("seed {seed}")));
        if seed % 1000 == 999 {
            eprintln!("{} images, {} s, {} wrong", seed + 1 - from, start.elapsed().as_secs(), wrong.len());
        }
    }
    assert!(wrong.is_empty(), "{} inputs do harm:\n{}", wrong.len(), wrong.join("\n"));
}
