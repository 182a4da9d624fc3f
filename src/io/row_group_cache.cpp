#include "io/row_group_cache.h"

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

namespace vlmtrain::io {

RowGroupCache::Group RowGroupCache::get(const Key& key, int64_t expected_bytes,
                                        const std::function<std::unique_ptr<const RowGroup>()>& read) {
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
    entries_.push_front({.key = key, .group = promise.get_future().share()});
  }
  try {
    Group group = read_one(key, expected_bytes, read);
    promise.set_value(group);
    return group;
  } catch (...) {
    forget(key);
    promise.set_exception(std::current_exception());
    throw;
  }
}

RowGroupCache::Group RowGroupCache::read_one(const Key& key, int64_t expected_bytes,
                                             const std::function<std::unique_ptr<const RowGroup>()>& read) {
  std::unique_lock one_at_a_time(large_reads_, std::defer_lock);
  if (expected_bytes > most_bytes_ / 2) one_at_a_time.lock();
  keep(key, expected_bytes);
  Group group = read();
  keep(key, std::max<int64_t>(group->bytes(), 1));
  const std::lock_guard lock(mutex_);
  if (const auto entry = std::ranges::find(entries_, key, &Entry::key); entry != entries_.end()) entry->is_read = true;
  return group;
}

int64_t RowGroupCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void RowGroupCache::enter(uint64_t data_set, uint64_t file, const std::filesystem::path& path,
                          const std::vector<int64_t>& rows, const std::vector<int64_t>& bytes) {
  File entry{.data_set = data_set, .largest = {.file = path}};
  for (size_t group = 0; group < bytes.size(); ++group) {
    entry.all_bytes += bytes[group];
    if (bytes[group] <= entry.largest.bytes) continue;
    entry.largest.group = group;
    entry.largest.rows = rows[group];
    entry.largest.bytes = bytes[group];
  }
  const std::lock_guard lock(mutex_);
  files_.insert_or_assign(file, std::move(entry));
}

void RowGroupCache::drop(uint64_t file) {
  const std::lock_guard lock(mutex_);
  files_.erase(file);
  std::erase_if(entries_, [&](const Entry& entry) {
    if (entry.key.file == file) bytes_ -= entry.bytes;
    return entry.key.file == file;
  });
}

RowGroupMemory RowGroupCache::memory() const {
  const std::lock_guard lock(mutex_);
  RowGroupMemory memory{.largest = {}, .held_bytes = bytes_};
  int64_t all_bytes = 0;
  std::map<uint64_t, int64_t> largest;  // by data set, each of which keeps one
  for (const auto& [number, file] : files_) {
    all_bytes += file.all_bytes;
    largest[file.data_set] = std::max(largest[file.data_set], file.largest.bytes);
    if (!memory.largest || file.largest.bytes > memory.largest->bytes) memory.largest = file.largest;
  }
  int64_t least_bytes = 0;
  for (const auto& [data_set, bytes] : largest) least_bytes += bytes;
  memory.most_bytes = std::max(least_bytes, std::min(all_bytes, most_bytes_));
  return memory;
}

/// Enters the size of a group that is being read or was read, and drops others that there is no room for then.
void RowGroupCache::keep(const Key& key, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto kept = std::ranges::find(entries_, key, &Entry::key);
  if (kept == entries_.end()) return;  // its file was dropped meanwhile
  bytes_ += bytes - kept->bytes;
  kept->bytes = bytes;
  make_room(*kept);
}

void RowGroupCache::make_room(const Entry& kept) {
  std::set<uint64_t> seen{kept.key.data_set};  // data sets, from the one that was used last on
  std::vector<std::list<Entry>::iterator> others;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (&*entry == &kept) continue;
    const bool is_first = seen.insert(entry->key.data_set).second;
    if (!is_first && entry->is_read) others.push_back(entry);
  }
  for (; bytes_ > most_bytes_ && !others.empty(); others.pop_back()) {
    bytes_ -= others.back()->bytes;
    entries_.erase(others.back());
  }
}

void RowGroupCache::forget(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto entry = std::ranges::find(entries_, key, &Entry::key);
  if (entry == entries_.end()) return;
  bytes_ -= entry->bytes;
  entries_.erase(entry);
}

int64_t RowGroupMemory::bytes_to_come() const {
  if (!largest) return 0;
  return std::max<int64_t>(0, most_bytes - held_bytes) + largest->bytes;
}

}  // namespace vlmtrain::io
