#pragma once

namespace vlmtrain::io {

/// Locks the whole file behind an open descriptor for this process, at once or not at all: 0, or the errno (EAGAIN or
/// EACCES where another holds it). The lock belongs to the open file, so that it ends with it, however the process
/// ends, and not with the first file that a library closes; NFS has it too.
int lock_file(int descriptor);

}  // namespace vlmtrain::io
