/// The variables through which the launcher talks to a worker's process; docs/guide/environment.md
/// lists them for users.
#pragma once

namespace tutti::detail {

// Who this worker is.
inline constexpr const char* kWorkerVariable = "TUTTI_WORKER";
inline constexpr const char* kNumWorkersVariable = "TUTTI_NUM_WORKERS";
inline constexpr const char* kJobVariable = "TUTTI_JOB";
// What one launcher started, and what that started: so it is found at the end.
inline constexpr const char* kLaunchVariable = "TUTTI_LAUNCH";
inline constexpr const char* kLocalWorkerVariable = "TUTTI_LOCAL_WORKER";
inline constexpr const char* kNumLocalWorkersVariable = "TUTTI_NUM_LOCAL_WORKERS";
// Descriptors that it inherits.
inline constexpr const char* kSegmentVariable = "TUTTI_SEGMENT_FD";
inline constexpr const char* kLifelineVariable = "TUTTI_LIFELINE_FD";
inline constexpr const char* kStepsVariable = "TUTTI_STEPS_FD";
// How often the whole job was started again before.
inline constexpr const char* kRestartVariable = "TUTTI_RESTART";
// What all lives of such a job share.
inline constexpr const char* kLivesVariable = "TUTTI_LIVES";
// Where the workers meet: by hand under other launchers.
inline constexpr const char* kRendezvousVariable = "TUTTI_RENDEZVOUS";
// By which of its networks this process is reached: an interface, a subnet or an address.
inline constexpr const char* kInterfaceVariable = "TUTTI_INTERFACE";

// Parameter servers: where their view service listens, and how many there are.
inline constexpr const char* kViewServiceVariable = "TUTTI_VIEW_SERVICE";
inline constexpr const char* kNumServersVariable = "TUTTI_NUM_SERVERS";
/// Shares of the parameters, "0.1,0.1,0.8", one a server; empty: equal.
inline constexpr const char* kServerWeightsVariable = "TUTTI_SERVER_WEIGHTS";
/// How many microseconds they and who waits for them poll before they sleep; "" or 0: none.
inline constexpr const char* kPollVariable = "TUTTI_POLL_US";
/// How many bytes of parameters are pushed and pulled as one.
inline constexpr const char* kPieceBytesVariable = "TUTTI_PIECE_BYTES";
// The snapshot of theirs that the job goes on from.
inline constexpr const char* kRestoreVariable = "TUTTI_RESTORE";
// The order of updates that servers record, and that they and their workers follow again.
inline constexpr const char* kRecordOrderVariable = "TUTTI_RECORD_ORDER";
inline constexpr const char* kReplayOrderVariable = "TUTTI_REPLAY_ORDER";
// The folder into which servers write snapshots.
inline constexpr const char* kSnapshotsVariable = "TUTTI_SNAPSHOTS";
// Whether workers have the command line of who started them; "": they have another.
inline constexpr const char* kOwnCommandVariable = "TUTTI_OWN_COMMAND";
// Set in every process of a job whose process 0 is a coordinator, the others its workers.
inline constexpr const char* kCoordinatorVariable = "TUTTI_COORDINATOR";

}  // namespace tutti::detail
