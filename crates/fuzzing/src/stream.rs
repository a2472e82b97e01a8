//! Send streams and resume tokens.

use std::io::sink;

use stream::dump::{Dumper, Options};
use stream::{Header, Reader, Record};

/// A send stream: read strictly, read without checksums, dumped in every way. A record that decodes survives encoding.
pub fn fuzz_stream(data: &[u8]) {
    let mut strict = Reader::new(data);
    let whole = loop {
        match strict.next_record() {
            Ok(Some(entry)) => assert!(entry.payload.len() <= data.len()),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    let mut lenient = Reader::new(data).without_checksums();
    while let Ok(Some(entry)) = lenient.next_record() {
        let bytes = entry.header.encode(base::Endian::Big);
        let again = Header::decode(&bytes, base::Endian::Big).expect("an encoded record");
        // in BEGIN the bytes of the checksum belong to the name, which has no byte order
        let begin = matches!(again.record, Record::Begin(_));
        assert!(again.record == entry.header.record && (begin || again.checksum == entry.header.checksum));
    }
    for ignore_checksums in [false, true] {
        // the data of a truncated stream is dumped in its claimed length: megabytes of text, each time
        let all = Options { verbose: true, checksums: true, data: whole, ignore_checksums };
        for options in [all, Options { ignore_checksums, ..Options::default() }] {
            let _ = Dumper::new(sink(), sink(), &options).run(data);
        }
    }
}

/// A resume token.
pub fn fuzz_token(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(list) = stream::token::decode(text.trim_end())
    {
        let _ = list.dump(5);
    }
}
