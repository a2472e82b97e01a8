//! The state shared by all of a program's handles on one open pool: when the last of them is dropped, their changes are written.

use std::ops::Deref;
use std::sync::Arc;

use pool::Spa;

/// A pool that is written, as its handles have it.
#[derive(Debug)]
pub(crate) struct Kept(Arc<Spa>);

impl Kept {
    pub(crate) fn new(spa: Arc<Spa>) -> Arc<Kept> {
        Arc::new(Kept(spa))
    }
}

impl Deref for Kept {
    type Target = Arc<Spa>;

    fn deref(&self) -> &Arc<Spa> {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // no caller is left to get the error: use `sync` or `export` before to learn of it. After an export there is nothing to write
        let _unwritten = self.0.sync();
        // nor one to wait for what runs in the background: it resumes when the pool is next opened
        self.0.stop_background();
        // the devices are closed with the last handle: who opens them next does not meet that of the sync thread
        self.0.wait_idle();
    }
}
