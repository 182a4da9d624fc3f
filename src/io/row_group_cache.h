#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>

#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {

/// The row groups that were used last, of all data sets of a process: samples of a group that are drawn near to each
/// other are read once. They take up to a number of bytes, but the one that was used last of each data set is kept in
/// any case: else several that are drawn from by turns would be read anew for each sample. Of several threads that ask
/// for the same group one reads it and the others wait. Thread-safe.
class RowGroupCache {
 public:
  struct Key {
    uint64_t data_set = 0;
    uint64_t file = 0;
    size_t group = 0;
    bool with_bytes = true;
    bool operator==(const Key&) const = default;
  };
  using Group = std::shared_ptr<const RowGroup>;

  explicit RowGroupCache(int64_t most_bytes) : most_bytes_(most_bytes) {}

  /// A number that no other data set or file has here.
  uint64_t new_number() { return ++numbers_; }

  /// What `read` throws, all that wait for it get; the next one who asks reads anew.
  Group get(const Key& key, const std::function<std::unique_ptr<const RowGroup>()>& read);

  /// Forgets the groups of a file, which nobody asks for any more.
  void drop(uint64_t file);

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
  std::atomic<uint64_t> numbers_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::list<Entry> entries_;  // the one that was used last comes first
  int64_t bytes_ = 0;
};

}  // namespace vlmtrain::io
