//! The two messages before HTTP/2 on a dialled connection: the bridge says who it is, the relay takes it or says why not (R-ENR-2, R-ENR-5).
//!
//! Each is four bytes of length and the message. Whoever sends more than such a message may have is not listened to.

use std::io;

use prost::Message;
use proto::enrollment::MAX_LINK_MESSAGE;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Sends a message.
pub(crate) async fn send(to: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> io::Result<()> {
    let length = u32::try_from(message.encoded_len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(message.encode_to_vec());
    to.write_all(&bytes).await?;
    to.flush().await
}

/// Reads a message, and not a byte behind it.
pub(crate) async fn receive<M: Message + Default>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<M> {
    let length = usize::try_from(from.read_u32().await?).unwrap_or(usize::MAX);
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    if length > MAX_LINK_MESSAGE {
        return Err(invalid(format!(
            "the first message on the link would have {length} bytes, and {MAX_LINK_MESSAGE} is the most"
        )));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).await?;
    M::decode(bytes.as_slice())
        .map_err(|error| invalid(format!("the first message on the link cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use proto::enrollment::v1::LinkHello;

    use super::*;

    #[tokio::test]
    async fn a_message_is_read_and_nothing_behind_it() {
        let hello = LinkHello { version: "0.1".into(), instance: "i".into(), runtime_id: "r".into() };
        let mut wire = Vec::new();
        send(&mut wire, &hello).await.unwrap();
        wire.extend(b"PRI");
        let mut from = wire.as_slice();
        assert_eq!(receive::<LinkHello>(&mut from).await.unwrap(), hello);
        assert_eq!(from, b"PRI");
    }

    #[tokio::test]
    async fn a_peer_that_speaks_something_else_is_refused_at_its_first_bytes() {
        for (wire, want) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "4096 is the most"),
            (b"PRI * HTTP/2.0\r\n", "4096 is the most"),
            (&[0x40, 0, 0, 0], "1073741824 bytes"),
            (&[0, 0, 0, 2, 0xff, 0xff], "cannot be read"),
            (&[0, 0, 0, 9, 1], "early eof"),
            (b"", "end of file"),
        ] {
            let error = receive::<LinkHello>(&mut &*wire).await.unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
