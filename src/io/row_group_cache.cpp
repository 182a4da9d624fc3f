#include "io/row_group_cache.h"

#include <algorithm>
#include <exception>
#include <utility>

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

void RowGroupCache::keep(const Key& key, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto kept = std::ranges::find(entries_, key, &Entry::key);
  kept->bytes = bytes;
  bytes_ += bytes;
  // From the one that was used longest ago; those that are being read are not counted yet, and not dropped.
  for (auto entry = entries_.end(); bytes_ > most_bytes_ && entry != entries_.begin();) {
    --entry;
    if (entry->bytes == 0 || entry == kept) continue;
    bytes_ -= entry->bytes;
    entry = entries_.erase(entry);
  }
}

void RowGroupCache::forget(const Key& key) {
  const std::lock_guard lock(mutex_);
  entries_.erase(std::ranges::find(entries_, key, &Entry::key));
}

}  // namespace vlmtrain::io
