// Written by tools/generate_abi.py from flashattn.h: change the header, then run it again.
errors! {
    /// the call can never be right
    InvalidArgument = FA_INVALID_ARGUMENT,
    /// a flag, enum value or struct tail that this version of the library does not know
    UnsupportedField = FA_UNSUPPORTED_FIELD,
    /// the call is right, but this backend has no kernel for it
    Unsupported = FA_UNSUPPORTED,
    /// The library's own words say more.
    OutOfMemory = FA_OUT_OF_MEMORY,
    /// The library's own words say more.
    WorkspaceTooSmall = FA_WORKSPACE_TOO_SMALL,
    /// the backend works, but the device does not exist
    NoDevice = FA_NO_DEVICE,
    /// the backend's module is not installed
    BackendMissing = FA_BACKEND_MISSING,
    /// the backend's module or driver is broken, of another version, or not trusted
    BackendIncompatible = FA_BACKEND_INCOMPATIBLE,
    /// the device reported a failure
    DeviceError = FA_DEVICE_ERROR,
    /// handle used by two threads at once, or in a forked child; call not allowed now
    InvalidState = FA_INVALID_STATE,
    /// a peer did not answer in time
    Timeout = FA_TIMEOUT,
    /// a peer, or the transport to it, failed
    PeerFailed = FA_PEER_FAILED,
    /// peers gave different descriptors
    PeersDisagree = FA_PEERS_DISAGREE,
    /// a defect of the library: please report it
    Internal = FA_INTERNAL,
}
