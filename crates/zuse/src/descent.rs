//! Directories of the host from a root down to where a walk is.
//!
//! A tree can be deeper than a process may have files open. So only the root and the lowest directories are open; one further up is opened again when
//! the walk comes back to it, as the parent of the one below it, and must be the same directory as before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{self, Mode, OFlags};

use crate::dest::{HostId, identity};

/// Opens a directory, and nothing else.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How many directories below the root are open.
const OPEN_MAX: usize = 64;

/// A directory below the root; `None` if it is not open.
struct Level {
    id: HostId,
    fd: Option<Arc<OwnedFd>>,
}

/// The directories from a root down.
pub(crate) struct Descent {
    root: Arc<OwnedFd>,
    below: Vec<Level>,
}

impl Descent {
    /// Only the root.
    pub(crate) fn new(root: Arc<OwnedFd>) -> Descent {
        Descent { root, below: Vec::new() }
    }

    /// The lowest directory.
    ///
    /// # Panics
    /// After an error of [`Descent::leave`], where the walk ends.
    pub(crate) fn lowest(&self) -> &Arc<OwnedFd> {
        self.below.last().map_or(&self.root, |level| level.fd.as_ref().expect("a walk ends where it cannot go up"))
    }

    /// Goes down into a directory of the lowest one.
    ///
    /// # Errors
    /// If it cannot be identified.
    pub(crate) fn enter(&mut self, dir: Arc<OwnedFd>) -> io::Result<()> {
        let id = identity(dir.as_fd())?;
        if let Some(far) = self.below.len().checked_sub(OPEN_MAX).and_then(|n| self.below.get_mut(n)) {
            far.fd = None;
        }
        self.below.push(Level { id, fd: Some(dir) });
        Ok(())
    }

    /// Goes up from the lowest directory, and returns it; `None` at the root, where the walk ends.
    ///
    /// # Errors
    /// If the one above cannot be opened again.
    pub(crate) fn leave(&mut self) -> io::Result<Option<Arc<OwnedFd>>> {
        let Some(Level { fd: Some(left), .. }) = self.below.pop() else { return Ok(None) };
        if let Some(above) = self.below.last_mut().filter(|above| above.fd.is_none()) {
            above.fd = Some(Arc::new(parent(left.as_fd(), above.id)?));
        }
        Ok(Some(left))
    }
}

/// Opens the parent of a directory.
fn parent(dir: BorrowedFd<'_>, id: HostId) -> io::Result<OwnedFd> {
    let parent = fs::openat(dir, "..", DIRECTORY, Mode::empty())?;
    match identity(parent.as_fd())? == id {
        true => Ok(parent),
        false => Err(io::Error::other("another program moved the directory meanwhile")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dest::{make_dir, open_root};

    #[test]
    fn few_are_open_and_the_way_up_is_the_way_down() {
        const DEPTH: usize = 3 * OPEN_MAX;
        let temp = tempfile::tempdir().unwrap();
        let mut descent = Descent::new(Arc::new(open_root(temp.path()).unwrap()));
        let mut ids = vec![identity(descent.lowest().as_fd()).unwrap()];
        let down = |descent: &mut Descent| {
            let dir = make_dir(descent.lowest().as_fd(), b"d").unwrap();
            descent.enter(Arc::new(dir)).unwrap();
            identity(descent.lowest().as_fd()).unwrap()
        };
        for _ in 0..DEPTH {
            ids.push(down(&mut descent));
            assert!(descent.below.iter().filter(|level| level.fd.is_some()).count() <= OPEN_MAX);
        }
        while let Some(id) = ids.pop() {
            assert_eq!(identity(descent.lowest().as_fd()).unwrap(), id);
            let left = descent.leave().unwrap();
            assert_eq!(left.map(|left| identity(left.as_fd()).unwrap()), (!ids.is_empty()).then_some(id));
        }
        // a directory that is somewhere else by then does not lead there
        let top = temp.path().join("d");
        for _ in 0..=OPEN_MAX + 1 {
            down(&mut descent);
        }
        std::fs::rename(top.join("d/d"), temp.path().join("moved")).unwrap();
        let up = std::iter::repeat_with(|| descent.leave().map(drop)).take(OPEN_MAX + 1).find(Result::is_err);
        assert!(up.unwrap().unwrap_err().to_string().contains("moved"));
    }
}
