//! The statuses of the library as an enumeration, each with its message.

use std::ffi::CStr;
use std::fmt;

use crate::sys;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $status:ident,)*) => {
        /// The status of a failed call, with the library's message: the field, its value and what was expected.
        #[non_exhaustive]
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(rustdoc::broken_intra_doc_links)]
        pub enum Error {
            $($(#[$doc])* $name(String),)*
            /// A status that only a later version of the library knows.
            Other(i32, String),
        }

        impl Error {
            pub(crate) fn of(status: i32, message: String) -> Error {
                match status {
                    $(sys::$status => Error::$name(message),)*
                    _ => Error::Other(status, message),
                }
            }

            /// `FA_INVALID_ARGUMENT` … of [`sys`].
            pub fn status(&self) -> i32 {
                match self {
                    $(Error::$name(_) => sys::$status,)*
                    Error::Other(status, _) => *status,
                }
            }

            /// The message.
            pub fn message(&self) -> &str {
                match self {
                    $(Error::$name(message) => message,)*
                    Error::Other(_, message) => message,
                }
            }
        }
    };
}
include!("generated/errors.rs");

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the name of a status is a string of the library that lives forever.
        let name = unsafe { CStr::from_ptr(sys::fa_status_name(self.status())) };
        write!(f, "{}: {}", name.to_string_lossy(), self.message())
    }
}

impl std::error::Error for Error {}

/// Must be called on the thread that made the call, before the next one.
pub(crate) fn check(raw: sys::fa_handle_t, status: i32) -> Result<()> {
    if status == sys::FA_OK {
        return Ok(());
    }
    // SAFETY: raw is live or null; the sentence lives until the next call and is copied here.
    let message = unsafe { CStr::from_ptr(sys::fa_last_error(raw)) }.to_string_lossy().into_owned();
    Err(Error::of(status, message))
}

pub(crate) fn invalid(message: String) -> Error {
    Error::InvalidArgument(message)
}
