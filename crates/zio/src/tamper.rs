//! Blocks as a hostile pool's author would have written them: in tests, a hook changes data after its correct checksum
//! was verified. Builds without debug assertions do not have it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::BlkPtr;
use parking_lot::RwLock;

/// Changes the logical bytes of the block that a pointer leads to. To be reproducible it must change a block in the same
/// way each time it is read.
pub type Hook = dyn Fn(&BlkPtr, &mut [u8]) + Send + Sync;

static IS_SET: AtomicBool = AtomicBool::new(false);
static HOOK: RwLock<Option<Arc<Hook>>> = RwLock::new(None);

/// Sets or removes the hook of this process.
pub fn set(hook: Option<Arc<Hook>>) {
    IS_SET.store(hook.is_some(), Ordering::Relaxed);
    *HOOK.write() = hook;
}

/// Passes a block to the hook.
pub(crate) fn block(bp: &BlkPtr, data: &mut [u8]) {
    if IS_SET.load(Ordering::Relaxed)
        && let Some(hook) = HOOK.read().clone()
    {
        hook(bp, data);
    }
}
