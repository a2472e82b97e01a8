//! Corrections of columns.

/// Corrections that were applied: row, column, what was added.
#[derive(Default)]
pub(super) struct Patch(Vec<(usize, usize, Vec<u8>)>);

impl Patch {
    pub(super) fn new() -> Patch {
        Patch::default()
    }

    pub(super) fn push(&mut self, row: usize, column: usize, error: Vec<u8>) {
        self.0.push((row, column, error));
    }

    pub(super) fn corrections(&self) -> &[(usize, usize, Vec<u8>)] {
        &self.0
    }

    /// Cuts off and gives the corrections from number `len` on.
    pub(super) fn split(&mut self, len: usize) -> Patch {
        Patch(self.0.split_off(len.min(self.0.len())))
    }
}
