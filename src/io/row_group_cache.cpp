#include "io/row_group_cache.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>
#include <vector>

namespace vlmtrain::io {

RowGroupCache::Group RowGroupCache::get(const Key& key, const std::function<std::unique_ptr<const RowGroup>()>& read) {
  std::promise<Group> promise;
  {
    std::unique_lock lock(mutex_);
    const auto found = std::ranges::find(entries_, key, &Entry::key);
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
      const auto group = found->group;
      lock.unlock();
      return group.get();
    }
    entries_.push_front({key, promise.get_future().share()});
  }
  try {
    Group group = read();
    promise.set_value(group);
    keep(key, std::max<int64_t>(group->bytes(), 1));
    return group;
  } catch (...) {
    forget(key);
    promise.set_exception(std::current_exception());
    throw;
  }
}

int64_t RowGroupCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void RowGroupCache::drop(uint64_t file) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.key.file == file) bytes_ -= entry.bytes;
    return entry.key.file == file;
  });
}

void RowGroupCache::keep(const Key& key, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto kept = std::ranges::find(entries_, key, &Entry::key);
  kept->bytes = bytes;
  bytes_ += bytes;
  std::set<uint64_t> seen;  // data sets, from the one that was used last on
  std::vector<std::list<Entry>::iterator> others;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const bool is_first = seen.insert(entry->key.data_set).second;
    // Those that are being read are not counted yet.
    if (!is_first && entry != kept && entry->bytes > 0) others.push_back(entry);
  }
  for (; bytes_ > most_bytes_ && !others.empty(); others.pop_back()) {
    bytes_ -= others.back()->bytes;
    entries_.erase(others.back());
  }
}

void RowGroupCache::forget(const Key& key) {
  const std::lock_guard lock(mutex_);
  entries_.erase(std::ranges::find(entries_, key, &Entry::key));
}

}  // namespace vlmtrain::io
