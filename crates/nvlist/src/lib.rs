//! Name-value lists, hash-indexed: native and XDR packing, JSON.
