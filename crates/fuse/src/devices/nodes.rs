//! The files and directories that the kernel knows, by its numbers.

use std::collections::HashMap;

use super::Identity;

/// The number of the root directory.
pub(super) const ROOT: u64 = 1;

/// What the kernel knows.
#[derive(Default)]
pub(super) struct Nodes {
    by_number: HashMap<u64, Node>,
    by_identity: HashMap<Identity, u64>,
    last: u64,
}

/// A file or directory that the kernel knows.
struct Node {
    /// The path at which it was found last.
    path: String,
    identity: Identity,
    /// How often the kernel was told of it, and has not forgotten it.
    lookups: u64,
}

impl Nodes {
    /// Returns the path at which a node was found last, and what was there; `None` for the root, or a node that is not known.
    pub(super) fn path(&self, number: u64) -> Option<(String, Identity)> {
        self.by_number.get(&number).map(|node| (node.path.clone(), node.identity))
    }

    /// Notes that the kernel is told of what is at a path. Returns its number.
    pub(super) fn looked_up(&mut self, path: String, identity: Identity) -> u64 {
        // numbers are not used again
        self.last = self.last.max(ROOT);
        let number = *self.by_identity.entry(identity).or_insert_with(|| {
            self.last += 1;
            self.last
        });
        let node = self.by_number.entry(number).or_insert_with(|| Node { path: String::new(), identity, lookups: 0 });
        node.path = path;
        node.lookups += 1;
        number
    }

    /// Notes that the kernel forgets so many lookups of a node.
    pub(super) fn forgotten(&mut self, number: u64, lookups: u64) {
        let Some(node) = self.by_number.get_mut(&number) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 {
            self.by_identity.remove(&node.identity);
            self.by_number.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_what_it_was_under_another_name_and_none_is_used_again() {
        let mut nodes = Nodes::default();
        let (a, b) = (Identity([1, 2, 3]), Identity([1, 2, 4]));
        let first = nodes.looked_up("t/a".to_owned(), a);
        assert!(first > ROOT);
        assert_eq!(nodes.looked_up("t/renamed".to_owned(), a), first);
        assert_eq!(nodes.path(first), Some(("t/renamed".to_owned(), a)));
        let second = nodes.looked_up("t/a".to_owned(), b);
        assert_ne!(second, first);
        nodes.forgotten(first, 1);
        assert!(nodes.path(first).is_some());
        nodes.forgotten(first, 1);
        nodes.forgotten(first, 1);
        assert_eq!(nodes.path(first), None);
        let again = nodes.looked_up("t/renamed".to_owned(), a);
        assert!(again != first && again != second);
        assert!(nodes.by_number.len() == 2 && nodes.by_identity.len() == 2);
    }
}
