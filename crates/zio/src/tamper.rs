//! Blocks as the maker of a hostile pool would have written them: for tests, a hook changes what was read behind a checksum that is right. Builds
//! without debug assertions do not have it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ondisk::BlkPtr;
use parking_lot::RwLock;

/// Changes the logical bytes of the block that a pointer leads to. To be the same in each run it must change a block in the same way
/// whenever it is read.
pub type Hook = dyn Fn(&BlkPtr, &mut [u8]) + Send + Sync;

static IS_SET: AtomicBool = AtomicBool::new(false);
static HOOK: RwLock<Option<Arc<Hook>>> = RwLock::new(None);

/// Sets the hook of this process, or takes it away.
pub fn set(hook: Option<Arc<Hook>>) {
    IS_SET.store(hook.is_some(), Ordering::Relaxed);
    *HOOK.write() = hook;
}

/// Shows the hook a block.
pub(crate) fn block(bp: &BlkPtr, data: &mut [u8]) {
    if IS_SET.load(Ordering::Relaxed)
        && let Some(hook) = HOOK.read().clone()
    {
        hook(bp, data);
    }
}
