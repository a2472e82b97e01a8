//! One process holds one pool open under many threads: files and volumes are written, synced, read and compared with a model; snapshots
//! are taken, verified, sent, received, cloned and destroyed; a scrub runs again and again, a log device comes and goes, and devices fail
//! and come back at random.
//!
//! `ZUSE_SECONDS` is the length of the run (a minute by default), `ZUSE_SEED` its seed, `ZUSE_THREADS` the number of threads; with
//! `ZUSE_FAULTS=0` no device fails. Half of the threads that change files do it in mounted file systems, where this user may mount; with
//! `ZUSE_MOUNTED=0` none does. With
//! `ZUSE_STRICT` the run fails as well if a writer stalls, a txg takes too long or memory grows; on a busy machine these figures say
//! nothing, so otherwise they are printed only.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "long_run/access.rs"]
mod access;
#[path = "long_run/content.rs"]
mod content;
#[path = "long_run/datasets.rs"]
mod datasets;
#[path = "long_run/devices.rs"]
mod devices;
#[path = "long_run/files.rs"]
mod files;
#[path = "long_run/volume.rs"]
mod volume;
#[path = "long_run/watch.rs"]
mod watch;
#[path = "long_run/world.rs"]
mod world;

use crash::number_from_env;
use world::World;

// the allocator of the `zuse` command, counted: what it keeps of freed memory for two hundred threads is not the engine's
#[global_allocator]
static ALLOCATOR: cap::Cap<mimalloc::MiMalloc> = cap::Cap::new(mimalloc::MiMalloc, usize::MAX);

/// Seconds of a run by default.
const SECONDS: u64 = 60;
/// Threads by default.
const THREADS: u64 = 64;
/// Threads with a task of their own: scrub, log device, failing device, held transaction, figures.
const SINGLE: u64 = 5;

#[test]
fn many_threads_share_a_pool_that_stays_open() {
    let seed = number_from_env("ZUSE_SEED", 1);
    let threads = number_from_env("ZUSE_THREADS", THREADS).max(SINGLE + 8);
    let world = World::new(seed, number_from_env("ZUSE_SECONDS", SECONDS));
    let many = threads - SINGLE;
    // of eight threads five write files, one a volume, one takes snapshots, one makes and destroys datasets
    std::thread::scope(|scope| {
        let world = &world;
        for n in 0..many {
            let seed = seed.wrapping_mul(1009).wrapping_add(n);
            match n % 8 {
                0..5 => scope.spawn(move || world.run("files", files::Writer::new(world, n, seed))),
                5 => scope.spawn(move || world.run("volume", volume::Writer::new(world, n, seed))),
                6 => scope.spawn(move || world.run("snapshots", datasets::Snapshots::new(world, n, seed))),
                _ => scope.spawn(move || world.run("datasets", datasets::ShortLived::new(world, n, seed))),
            };
        }
        scope.spawn(|| world.run("scrub", devices::scrub(world)));
        scope.spawn(|| world.run("log", devices::log_comes_and_goes(world)));
        if number_from_env("ZUSE_FAULTS", 1) != 0 {
            scope.spawn(|| world.run("devices", devices::fail_and_return(world, seed)));
        }
        scope.spawn(|| world.run("holder", watch::hold_transactions(world)));
        scope.spawn(|| world.run("figures", watch::figures(world)));
    });
    world.finish(number_from_env("ZUSE_STRICT", 0) != 0);
}
