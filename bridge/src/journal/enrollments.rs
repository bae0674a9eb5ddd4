//! The records of a relay: its tokens, and the keys that are or were enrolled (R-ENR-1, R-ENR-3).
//!
//! A file of its own kind, kept by the same writer as a bridge's journal: what a method answered is on disk. Whoever asks brings the digest of a
//! token and of a key; neither of them is ever stored.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _};

use super::{Journal, Result, schema};

/// A SHA-256.
type Digest = [u8; 32];

/// The front of the records.
#[derive(Clone, Debug)]
pub(crate) struct Enrollments(Journal);

/// What became of a token and a key that want a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enrolled {
    /// The key is enrolled.
    Now,
    /// It was already, by this token: an answer was lost.
    Again,
    /// No such token, or one that was made void.
    Foreign,
    /// The token is of another Environment.
    OtherEnvironment,
    /// The token's time is over.
    Expired,
    /// The token was used with another key.
    Used,
    /// The Environment has another key.
    OtherKey,
    /// The key was revoked.
    Revoked,
}

/// What became of a key that wants a fresh certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// It may have one.
    Yes,
    /// Why not.
    No(Standing),
}

/// How a key stands to an Environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is the enrolled one.
    Enrolled,
    /// It was, until it was revoked.
    Revoked,
    /// It never was.
    Unknown,
}

/// What a revocation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RevokedRecord {
    /// Whether there was anything of this Environment at all.
    pub(crate) is_known: bool,
    /// Whether it was enrolled.
    pub(crate) was_enrolled: bool,
    /// How many tokens were made void.
    pub(crate) tokens: u32,
}

/// What is recorded of one Environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnvironmentRecord {
    /// Its id.
    pub(crate) environment_id: String,
    /// Whether a key is enrolled.
    pub(crate) is_enrolled: bool,
    /// Whether a token can be used.
    pub(crate) is_invited: bool,
    /// Until when its newest certificate is valid.
    pub(crate) not_after_ms: Option<i64>,
}

impl Enrollments {
    /// Opens the records at `path` or makes them, and locks the file for this process. Blocks.
    ///
    /// # Errors
    ///
    /// As those of [`Journal::open`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Journal::open_as(path, &schema::RELAY).map(Self)
    }

    /// Carries out what waits and closes the file.
    pub(crate) async fn close(self) {
        self.0.close().await;
    }

    /// Records a token.
    pub(crate) async fn put_token(&self, digest: Digest, environment_id: &str, expires_ms: i64) -> Result<()> {
        let environment_id = environment_id.to_owned();
        self.0
            .run(move |connection| {
                connection
                    .prepare_cached("INSERT INTO token (digest, environment_id, expires_ms) VALUES (?1, ?2, ?3)")?
                    .execute((digest, &environment_id, expires_ms))?;
                Ok(())
            })
            .await
    }

    /// Uses a token for a key, once and for all; the certificate will be valid until `not_after_ms`.
    pub(crate) async fn enroll(
        &self,
        token: Digest,
        environment_id: &str,
        key: Digest,
        now_ms: i64,
        not_after_ms: i64,
    ) -> Result<Enrolled> {
        let environment_id = environment_id.to_owned();
        self.0
            .run(move |connection| {
                let outcome = judge(connection, token, &environment_id, key, now_ms)?;
                if matches!(outcome, Enrolled::Now | Enrolled::Again) {
                    connection
                        .prepare_cached("UPDATE token SET used_by = ?2 WHERE digest = ?1")?
                        .execute((token, key))?;
                    connection
                        .prepare_cached(
                            "INSERT INTO enrollment (environment_id, key, not_after_ms) VALUES (?1, ?2, ?3) \
                             ON CONFLICT (environment_id, key) DO UPDATE SET not_after_ms = excluded.not_after_ms",
                        )?
                        .execute((&environment_id, key, not_after_ms))?;
                }
                Ok(outcome)
            })
            .await
    }

    /// Records that an enrolled key has a fresh certificate.
    pub(crate) async fn renew(&self, environment_id: &str, key: Digest, not_after_ms: i64) -> Result<Renewed> {
        let environment_id = environment_id.to_owned();
        self.0
            .run(move |connection| {
                let standing = standing(connection, &environment_id, key)?;
                if standing != Standing::Enrolled {
                    return Ok(Renewed::No(standing));
                }
                connection
                    .prepare_cached("UPDATE enrollment SET not_after_ms = ?3 WHERE environment_id = ?1 AND key = ?2")?
                    .execute((&environment_id, key, not_after_ms))?;
                Ok(Renewed::Yes)
            })
            .await
    }

    /// How a key stands to an Environment.
    pub(crate) async fn standing(&self, environment_id: &str, key: Digest) -> Result<Standing> {
        let environment_id = environment_id.to_owned();
        self.0.run(move |connection| standing(connection, &environment_id, key)).await
    }

    /// Takes the enrollment away, and every token.
    pub(crate) async fn revoke(&self, environment_id: &str) -> Result<RevokedRecord> {
        let environment_id = environment_id.to_owned();
        self.0
            .run(move |connection| {
                let known: bool = connection
                    .prepare_cached(
                        "SELECT EXISTS (SELECT 1 FROM token WHERE environment_id = ?1) \
                         OR EXISTS (SELECT 1 FROM enrollment WHERE environment_id = ?1)",
                    )?
                    .query_row((&environment_id,), |row| row.get(0))?;
                let revoked = connection
                    .prepare_cached("UPDATE enrollment SET revoked = 1 WHERE environment_id = ?1 AND revoked = 0")?
                    .execute((&environment_id,))?;
                let void = connection
                    .prepare_cached(
                        "UPDATE token SET void = 1 WHERE environment_id = ?1 AND void = 0 AND used_by IS NULL",
                    )?
                    .execute((&environment_id,))?;
                let tokens = u32::try_from(void).unwrap_or(u32::MAX);
                Ok(RevokedRecord { is_known: known, was_enrolled: revoked > 0, tokens })
            })
            .await
    }

    /// Everything that is recorded, sorted by id.
    pub(crate) async fn environments(&self, now_ms: i64) -> Result<Vec<EnvironmentRecord>> {
        self.0
            .run(move |connection| {
                let mut select = connection.prepare_cached(
                    "SELECT id, EXISTS (SELECT 1 FROM enrollment WHERE environment_id = id AND revoked = 0), \
                     EXISTS (SELECT 1 FROM token WHERE environment_id = id AND void = 0 AND used_by IS NULL \
                     AND expires_ms > ?1), (SELECT max(not_after_ms) FROM enrollment WHERE environment_id = id) \
                     FROM (SELECT environment_id AS id FROM token UNION SELECT environment_id FROM enrollment) \
                     ORDER BY id",
                )?;
                let read = |row: &rusqlite::Row<'_>| {
                    Ok(EnvironmentRecord {
                        environment_id: row.get(0)?,
                        is_enrolled: row.get(1)?,
                        is_invited: row.get(2)?,
                        not_after_ms: row.get(3)?,
                    })
                };
                let found = select.query_map((now_ms,), read)?.collect::<rusqlite::Result<_>>()?;
                Ok(found)
            })
            .await
    }
}

fn judge(connection: &Connection, token: Digest, environment_id: &str, key: Digest, now_ms: i64) -> Result<Enrolled> {
    let found: Option<(String, i64, bool, Option<Digest>)> = connection
        .prepare_cached("SELECT environment_id, expires_ms, void, used_by FROM token WHERE digest = ?1")?
        .query_row((token,), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let Some((of, expires_ms, void, used_by)) = found else { return Ok(Enrolled::Foreign) };
    if of != environment_id {
        return Ok(Enrolled::OtherEnvironment);
    }
    let standing = standing(connection, environment_id, key)?;
    if standing == Standing::Revoked {
        return Ok(Enrolled::Revoked);
    }
    match used_by {
        Some(used_by) if used_by == key && standing == Standing::Enrolled => return Ok(Enrolled::Again),
        Some(_) => return Ok(Enrolled::Used),
        None if void => return Ok(Enrolled::Foreign),
        None if expires_ms <= now_ms => return Ok(Enrolled::Expired),
        None => {}
    }
    let other: bool = connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM enrollment WHERE environment_id = ?1 AND key <> ?2 AND revoked = 0)",
        )?
        .query_row((environment_id, key), |row| row.get(0))?;
    Ok(if other { Enrolled::OtherKey } else { Enrolled::Now })
}

fn standing(connection: &Connection, environment_id: &str, key: Digest) -> Result<Standing> {
    let revoked: Option<bool> = connection
        .prepare_cached("SELECT revoked FROM enrollment WHERE environment_id = ?1 AND key = ?2")?
        .query_row((environment_id, key), |row| row.get(0))
        .optional()?;
    Ok(match revoked {
        Some(false) => Standing::Enrolled,
        Some(true) => Standing::Revoked,
        None => Standing::Unknown,
    })
}
