//! The tree that is current: vdevs come and go while a pool is open.
//!
//! A reader takes the current tree for one operation, without a lock, and works with it to the end, whatever is published meanwhile. So a tree
//! never changes under anybody, and one that was replaced lives until its last reader is done. The sync thread alone publishes, in the txg that
//! makes the change.

use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Guard};

use crate::{PoolErrors, VdevTree};

/// The tree as it was when it was asked for.
pub type TreeRef = Guard<Arc<VdevTree>>;

/// The current tree of a pool.
#[derive(Debug)]
pub struct LiveTree {
    tree: ArcSwap<VdevTree>,
    errors: OnceLock<Arc<PoolErrors>>,
}

impl LiveTree {
    /// Begins with `tree`.
    #[must_use]
    pub fn new(tree: Arc<VdevTree>) -> LiveTree {
        LiveTree { tree: ArcSwap::new(tree), errors: OnceLock::new() }
    }

    /// The current tree, for one operation.
    #[must_use]
    pub fn load(&self) -> TreeRef {
        self.tree.load()
    }

    /// Makes `tree` the current one.
    pub fn publish(&self, tree: Arc<VdevTree>) {
        tree.identify_leaves();
        if let Some(errors) = self.errors.get() {
            errors.follow(&tree);
        }
        self.tree.store(tree);
    }

    /// The errors met in this pool.
    #[must_use]
    pub fn errors(&self) -> &Arc<PoolErrors> {
        self.errors.get_or_init(Arc::default)
    }

    /// Counts the errors of all vdevs, those to come as well, in `errors`. Only the first one counts.
    pub fn count_in(&self, errors: &Arc<PoolErrors>) {
        self.errors.get_or_init(|| errors.clone()).follow(&self.load());
    }
}
