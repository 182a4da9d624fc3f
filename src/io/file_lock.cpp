#include "vlmtrain/io/file_lock.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>

namespace vlmtrain::io {

int lock_file(int descriptor) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  while (fcntl(descriptor, F_OFD_SETLK, &whole) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace vlmtrain::io
