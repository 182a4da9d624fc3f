#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <tuple>

#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {

/// The row groups that were used last, up to a number of bytes, and one at least: samples of a group that are drawn
/// near to each other are read once. Of several threads that ask for the same group one reads it and the others wait.
/// Thread-safe.
class RowGroupCache {
 public:
  /// Which file, which of its groups, and whether with the bytes of media.
  using Key = std::tuple<const RowFile*, size_t, bool>;
  using Group = std::shared_ptr<const RowGroup>;

  explicit RowGroupCache(int64_t most_bytes) : most_bytes_(most_bytes) {}

  /// What `read` throws, all that wait for it get; the next one who asks reads anew.
  Group get(const Key& key, const std::function<std::unique_ptr<const RowGroup>()>& read);

  int64_t bytes() const;

 private:
  struct Entry {
    Key key;
    std::shared_future<Group> group;
    int64_t bytes = 0;  // 0: not read yet
  };

  void keep(const Key& key, int64_t bytes);
  void forget(const Key& key);

  const int64_t most_bytes_;
  mutable std::mutex mutex_;  // guards what follows
  std::list<Entry> entries_;  // the one that was used last comes first
  int64_t bytes_ = 0;
};

}  // namespace vlmtrain::io
