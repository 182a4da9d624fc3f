#include "vlmtrain/io/file_lock.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>

namespace vlmtrain::io {

int lock_file(int descriptor) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  while (fcntl(descriptor, F_OFD_SETLK, &lock) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace vlmtrain::io
