//! DSL directories, datasets, deadlists, bookmarks, holds (FORMAT.md §9)
