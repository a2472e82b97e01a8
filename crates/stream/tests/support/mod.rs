//! The streams of the fixtures.
#![allow(dead_code, unreachable_pub)]

use oracle::fixtures;

/// Returns the members of a tar archive: (name, contents).
pub fn untar(tar: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut members = Vec::new();
    let mut at = 0;
    while let Some(head) = tar.get(at..at + 512).filter(|head| head[0] != 0) {
        let text = |field: &[u8]| String::from_utf8_lossy(field).trim_matches(['\0', ' ']).to_owned();
        let size = usize::from_str_radix(&text(&head[124..136]), 8).unwrap();
        members.push((text(&head[..100]), tar[at + 512..at + 512 + size].to_vec()));
        at += 512 + size.next_multiple_of(512);
    }
    members
}

/// Returns all streams of a fixture: (name without ending, bytes).
pub fn streams(fixture: &str) -> Vec<(String, Vec<u8>)> {
    let tar = fixtures::read_zst(&fixtures::dir(fixture).join("streams.tar.zst"));
    let of =
        |(name, bytes): (String, Vec<u8>)| Some((name.rsplit('/').next()?.strip_suffix(".zstream")?.to_owned(), bytes));
    untar(&tar).into_iter().filter_map(of).collect()
}

/// Returns the stream of that name.
pub fn stream_of(fixture: &str, name: &str) -> Vec<u8> {
    streams(fixture).into_iter().find(|(n, _)| n == name).unwrap().1
}

/// Writes a temporary file with these bytes, deleted on drop.
pub fn write_temp(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    file
}
