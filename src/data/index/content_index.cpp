#include "vlmtrain/data/index/content_index.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_set>

#include "data/index/parallel_for.h"
#include "vlmtrain/base/hash.h"

namespace vlmtrain::data {

namespace {

/// Bytes at the beginning of files that are compared first. With fewer bytes, more files are read
/// in full; with more, more bytes of different files are read. Chosen without measurement.
constexpr size_t kHeadBytes = size_t{64} << 10;

/// Returns a hash of the first bytes of a file; nothing if it cannot be read. `max_bytes` is a
/// multiple of kHeadBytes, or kNoByteLimit.
std::optional<uint64_t> hash_file(const std::string& path, size_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  std::string buffer(kHeadBytes, '\0');
  ContentHash hash;
  for (size_t offset = 0; offset < max_bytes && file; offset += buffer.size()) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.add(std::string_view(buffer).substr(0, static_cast<size_t>(file.gcount())));
  }
  return file.bad() || (!file && !file.eof()) ? std::nullopt : std::optional{hash.value()};
}

/// Returns the result of hash_file() for a file with these bytes. ContentHash depends on the
/// division into chunks, which must be the same.
uint64_t hash_bytes(std::string_view bytes, size_t max_bytes) {
  ContentHash hash;
  for (size_t offset = 0; offset < max_bytes; offset += kHeadBytes) {
    hash.add(bytes.substr(std::min(offset, bytes.size()), kHeadBytes));
    if (offset + kHeadBytes > bytes.size()) break;
  }
  return hash.value();
}

/// No limit. Half the maximum, so that offsets do not overflow.
constexpr size_t kNoByteLimit = std::numeric_limits<size_t>::max() / 2;

/// Returns the media of a record. The frames of a frame list count as media.
std::vector<const io::MediaRef*> list_media(const io::Record& record) {
  std::vector<const io::MediaRef*> media;
  for (const auto* list : {&record.images, &record.videos}) {
    for (const io::MediaRef& medium : *list) {
      if (medium.frames.empty()) media.push_back(&medium);
      for (const io::MediaRef& frame : medium.frames) media.push_back(&frame);
    }
  }
  return media;
}

/// Returns a hash of a record without the contents of its images and videos.
uint64_t hash_conversation(const io::Record& record) {
  ContentHash hash;
  for (const auto& turn : record.turns) hash.add(static_cast<uint64_t>(turn.role)).add(turn.text);
  io::add_objects_to_hash(hash, record.objects);
  if (record.window)
    hash.add(static_cast<uint64_t>(record.window->index)).add(static_cast<uint64_t>(record.window->tokens));
  for (const auto* list : {&record.images, &record.videos}) {
    hash.add(list->size());
    for (const io::MediaRef& medium : *list) hash.add(medium.frames.size()).add(medium.modality);
  }
  for (const io::MaskSource& mask : record.masks) {
    hash.add(mask.file.path).add(mask.file.bytes ? std::string_view(*mask.file.bytes) : std::string_view());
    hash.add(mask.value ? static_cast<uint64_t>(*mask.value) + 1 : 0).add(static_cast<uint64_t>(mask.image_index));
    for (const int64_t count : mask.rle ? mask.rle->counts : std::vector<int64_t>{}) {
      hash.add(static_cast<uint64_t>(count));
    }
  }
  return hash.value();
}

}  // namespace

size_t ContentIndex::add_dataset(const io::Records& records, int64_t workers,
                                 const std::function<void(int64_t num_done)>& on_progress) {
  const size_t dataset_index = datasets_.size();
  datasets_.push_back(&records);
  fingerprints_.emplace_back(static_cast<size_t>(records.size()));
  parallel_for(
      records.size(), workers,
      [&](int64_t index) {
        fingerprints_[dataset_index][static_cast<size_t>(index)] =
            make_fingerprint(records.at(index), dataset_index, index);
      },
      on_progress);
  return dataset_index;
}

ContentIndex::RecordFingerprint ContentIndex::make_fingerprint(const io::Record& record, size_t dataset_index,
                                                               int64_t index) {
  RecordFingerprint fingerprint;
  if (!record.problem.empty()) return fingerprint;
  fingerprint.is_usable = true;
  fingerprint.conversation_hash = hash_conversation(record);
  for (const std::string& subject : record.subject_ids)
    fingerprint.subject_hashes.push_back(ContentHash().add(subject).value());
  for (const io::MaskSource& mask : record.masks) {
    if (mask.rle) continue;
    ContentHash key;
    key.add(mask.file.path).add(mask.file.bytes ? std::string_view(*mask.file.bytes) : std::string_view());
    fingerprint.mask_keys.push_back(key.add(mask.value ? static_cast<uint64_t>(*mask.value) + 1 : 0).value());
  }
  const auto media = list_media(record);
  fingerprint.media_keys.reserve(media.size());
  for (size_t media_index = 0; media_index < media.size(); ++media_index) {
    fingerprint.media_keys.push_back(find_or_add_medium(
        *media[media_index],
        {.dataset_index = dataset_index, .record_index = index, .media_index = static_cast<int64_t>(media_index)}));
  }
  return fingerprint;
}

uint64_t ContentIndex::find_or_add_medium(const io::MediaRef& medium, MediaEntry media_entry) {
  uint64_t key = 0;
  if (medium.bytes) {
    media_entry.bytes = std::ssize(*medium.bytes);
    media_entry.head_hash = hash_bytes(*medium.bytes, kHeadBytes);
    media_entry.content_hash = hash_bytes(*medium.bytes, kNoByteLimit);
    key = ContentHash()
              .add(uint64_t{1})
              .add(*media_entry.content_hash)
              .add(static_cast<uint64_t>(media_entry.bytes))
              .value();
  } else {
    key = ContentHash().add(uint64_t{0}).add(medium.path).value();
    {
      const std::lock_guard lock(mutex_);
      if (const auto existing = media_.find(key); existing != media_.end()) {
        // The first record represents the file, so that the result does not depend on thread
        // timing.
        MediaEntry& first = existing->second;
        if (std::tie(media_entry.dataset_index, media_entry.record_index) <
            std::tie(first.dataset_index, first.record_index)) {
          first.dataset_index = media_entry.dataset_index;
          first.record_index = media_entry.record_index;
          first.media_index = media_entry.media_index;
        }
        return key;
      }
    }
    struct stat status {};
    if (stat(medium.path.c_str(), &status) != 0) {
      media_entry.problem = std::generic_category().message(errno);
    } else if (S_ISREG(status.st_mode)) {
      media_entry.bytes = status.st_size;
    } else if (!S_ISDIR(status.st_mode)) {
      media_entry.problem = "is not a file";
    }
  }
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = media_.try_emplace(key, media_entry);
  MediaEntry& first = entry->second;
  if (!is_new &&
      std::tie(media_entry.dataset_index, media_entry.record_index) < std::tie(first.dataset_index, first.record_index))
    first = std::move(media_entry);
  return key;
}

std::string ContentIndex::read_media_path(const MediaEntry& medium) const {
  const io::Record record = datasets_[medium.dataset_index]->at_without_media_bytes(medium.record_index);
  const auto media = list_media(record);
  const auto media_index = static_cast<size_t>(medium.media_index);
  return media_index < media.size() ? media[media_index]->path : "";  // empty if the data set was changed meanwhile
}

void ContentIndex::hash_possible_duplicates(int64_t workers) {
  /// Calls `visit` for each group of two or more media with equal `key`.
  const auto for_each_equal_group = [](std::vector<MediaEntry*> media, const auto& key, const auto& visit) {
    std::ranges::sort(media, {}, key);
    for (auto group_begin = media.begin(); group_begin != media.end();) {
      const auto group_end =
          std::find_if(group_begin, media.end(), [&](MediaEntry* medium) { return key(medium) != key(*group_begin); });
      if (group_end - group_begin > 1) visit(std::vector(group_begin, group_end));
      group_begin = group_end;
    }
  };
  std::vector<MediaEntry*> nonempty_media;
  nonempty_media.reserve(media_.size());
  for (auto& [key, medium] : media_) {
    if (medium.bytes > 0) nonempty_media.push_back(&medium);
  }
  // Candidates have the size of another file. Their first bytes are hashed, then whole files if the
  // first bytes are equal too.
  std::vector<MediaEntry*> candidates, pending;
  const auto get_size_key = [](const MediaEntry* medium) { return medium->bytes; };
  for_each_equal_group(std::move(nonempty_media), get_size_key, [&](const std::vector<MediaEntry*>& group) {
    candidates.insert(candidates.end(), group.begin(), group.end());
  });
  std::ranges::copy_if(candidates, std::back_inserter(pending),
                       [](const MediaEntry* medium) { return !medium->head_hash; });
  parallel_for(std::ssize(pending), workers, [&](int64_t i) {
    MediaEntry& medium = *pending[static_cast<size_t>(i)];
    medium.head_hash = hash_file(read_media_path(medium), kHeadBytes);
  });
  pending.clear();
  std::erase_if(candidates, [](const MediaEntry* medium) { return !medium->head_hash; });
  const auto get_size_and_head_key = [](const MediaEntry* medium) {
    return std::pair(medium->bytes, *medium->head_hash);
  };
  for_each_equal_group(std::move(candidates), get_size_and_head_key, [&](const std::vector<MediaEntry*>& group) {
    std::ranges::copy_if(group, std::back_inserter(pending),
                         [](const MediaEntry* medium) { return !medium->content_hash; });
  });
  parallel_for(std::ssize(pending), workers, [&](int64_t i) {
    MediaEntry& medium = *pending[static_cast<size_t>(i)];
    medium.content_hash = hash_file(read_media_path(medium), kNoByteLimit);
  });
}

uint64_t ContentIndex::get_content_hash(uint64_t media_key) const {
  const MediaEntry& media_entry = media_.at(media_key);
  // A file that was not read has no duplicate; its own key identifies it.
  if (!media_entry.content_hash) return media_key;
  return ContentHash().add(static_cast<uint64_t>(media_entry.bytes)).add(*media_entry.content_hash).value();
}

uint64_t ContentIndex::compute_record_key(const RecordFingerprint& fingerprint) const {
  ContentHash hash;
  hash.add(fingerprint.conversation_hash);
  for (const uint64_t medium : fingerprint.media_keys) hash.add(get_content_hash(medium));
  return hash.value();
}

std::vector<MissingFile> ContentIndex::find_missing_files(size_t dataset_index) const {
  std::map<uint64_t, MissingFile> files;
  const auto& fingerprints = fingerprints_[dataset_index];
  for (size_t index = 0; index < fingerprints.size(); ++index) {
    for (const uint64_t medium :
         std::set(fingerprints[index].media_keys.begin(), fingerprints[index].media_keys.end())) {
      const MediaEntry& media_entry = media_.at(medium);
      if (media_entry.problem.empty()) continue;
      auto [file, is_new] = files.try_emplace(medium);
      if (is_new) {
        file->second = {.path = read_media_path(media_entry),
                        .reason = media_entry.problem,
                        .first_record_index = static_cast<int64_t>(index)};
      }
      ++file->second.num_records;
    }
  }
  std::vector<MissingFile> list;
  list.reserve(files.size());
  for (auto& [key, file] : files) list.push_back(std::move(file));
  std::ranges::sort(list, [](const MissingFile& left, const MissingFile& right) {
    return std::tie(left.first_record_index, left.path) < std::tie(right.first_record_index, right.path);
  });
  return list;
}

std::vector<std::vector<int64_t>> ContentIndex::find_duplicate_records(size_t dataset_index) const {
  std::vector<std::pair<uint64_t, int64_t>> record_keys_and_indices;
  const auto& fingerprints = fingerprints_[dataset_index];
  record_keys_and_indices.reserve(fingerprints.size());
  for (size_t index = 0; index < fingerprints.size(); ++index) {
    if (fingerprints[index].is_usable)
      record_keys_and_indices.emplace_back(compute_record_key(fingerprints[index]), static_cast<int64_t>(index));
  }
  std::ranges::sort(record_keys_and_indices);
  std::vector<std::vector<int64_t>> duplicate_groups;
  for (size_t first = 0, end = 0; first < record_keys_and_indices.size(); first = end) {
    while (end < record_keys_and_indices.size() &&
           record_keys_and_indices[end].first == record_keys_and_indices[first].first)
      ++end;
    if (end - first < 2) continue;
    auto& group = duplicate_groups.emplace_back();
    group.reserve(end - first);
    for (size_t i = first; i < end; ++i) group.push_back(record_keys_and_indices[i].second);
  }
  std::ranges::sort(duplicate_groups);
  return duplicate_groups;
}

std::vector<std::vector<std::string>> ContentIndex::find_duplicate_files() const {
  std::map<std::pair<int64_t, uint64_t>, std::vector<const MediaEntry*>> media_by_content;
  for (const auto& [key, medium] : media_) {
    if (medium.content_hash) media_by_content[{medium.bytes, *medium.content_hash}].push_back(&medium);
  }
  std::vector<std::vector<std::string>> duplicate_groups;
  for (const auto& [content, media] : media_by_content) {
    if (media.size() < 2) continue;
    auto& group = duplicate_groups.emplace_back();
    group.reserve(media.size());
    for (const MediaEntry* medium : media) group.push_back(read_media_path(*medium));
    std::ranges::sort(group);
  }
  std::ranges::sort(duplicate_groups);
  return duplicate_groups;
}

std::map<int64_t, int64_t> ContentIndex::find_shared_records(size_t dataset_index, size_t other_dataset_index) const {
  std::unordered_map<uint64_t, int64_t> first_record_by_key;
  for (size_t index = 0; index < fingerprints_[other_dataset_index].size(); ++index) {
    const RecordFingerprint& fingerprint = fingerprints_[other_dataset_index][index];
    if (fingerprint.is_usable)
      first_record_by_key.try_emplace(compute_record_key(fingerprint), static_cast<int64_t>(index));
  }
  std::map<int64_t, int64_t> shared_records;
  for (size_t index = 0; index < fingerprints_[dataset_index].size(); ++index) {
    const RecordFingerprint& fingerprint = fingerprints_[dataset_index][index];
    if (!fingerprint.is_usable) continue;
    if (const auto first = first_record_by_key.find(compute_record_key(fingerprint));
        first != first_record_by_key.end()) {
      shared_records.emplace(static_cast<int64_t>(index), first->second);
    }
  }
  return shared_records;
}

bool ContentIndex::has_subjects(size_t dataset_index) const {
  return std::ranges::any_of(fingerprints_[dataset_index],
                             [](const RecordFingerprint& fingerprint) { return !fingerprint.subject_hashes.empty(); });
}

SharedSubjects ContentIndex::find_shared_subjects(size_t dataset_index, size_t other_dataset_index) const {
  std::unordered_set<uint64_t> other_subjects, reported;
  for (const RecordFingerprint& fingerprint : fingerprints_[other_dataset_index])
    other_subjects.insert(fingerprint.subject_hashes.begin(), fingerprint.subject_hashes.end());
  SharedSubjects shared_subjects;
  for (size_t index = 0; index < fingerprints_[dataset_index].size(); ++index) {
    const auto& subjects = fingerprints_[dataset_index][index].subject_hashes;
    if (std::ranges::none_of(subjects, [&](uint64_t subject) { return other_subjects.contains(subject); })) continue;
    shared_subjects.record_indices.push_back(static_cast<int64_t>(index));
    const auto subject_names =
        datasets_[dataset_index]->at_without_media_bytes(shared_subjects.record_indices.back()).subject_ids;
    for (size_t i = 0; i < std::min(subject_names.size(), subjects.size()); ++i) {
      if (other_subjects.contains(subjects[i]) && reported.insert(subjects[i]).second)
        shared_subjects.subject_names.push_back(subject_names[i]);
    }
  }
  return shared_subjects;
}

std::vector<int64_t> ContentIndex::find_records_sharing_media(size_t dataset_index, size_t other_dataset_index) const {
  std::unordered_set<uint64_t> content_hashes;
  for (const RecordFingerprint& fingerprint : fingerprints_[other_dataset_index]) {
    for (const uint64_t medium : fingerprint.media_keys) content_hashes.insert(get_content_hash(medium));
  }
  std::vector<int64_t> records;
  for (size_t index = 0; index < fingerprints_[dataset_index].size(); ++index) {
    const auto& media = fingerprints_[dataset_index][index].media_keys;
    const bool is_shared =
        std::ranges::any_of(media, [&](uint64_t medium) { return content_hashes.contains(get_content_hash(medium)); });
    if (is_shared) records.push_back(static_cast<int64_t>(index));
  }
  return records;
}

}  // namespace vlmtrain::data
