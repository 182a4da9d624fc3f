#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// A file of a record that is not there, or is none.
struct MissingFile {
  std::string path;
  std::string reason;        ///< the system's: "No such file or directory"
  int64_t first_record = 0;  ///< of the records that name it, the first
  int64_t num_records = 0;   ///< that name it
};

struct SharedSubjects {
  std::vector<std::string> subjects;
  std::vector<int64_t> records;  ///< of these
};

/// Which records of some data sets say the same, and which of their files hold the same. Hashes of 64 bits are kept, no
/// contents: some hundred bytes for a record and for a file. Records say the same where their conversations are equal
/// to the byte and their pictures and videos hold the same; id, task and file names do not count. Of files only those
/// are read that are as large as another one, and of these wholly only those that begin alike; a folder with the frames
/// of a video is the same only by its name. Records that cannot be used are left out.
class ContentIndex {
 public:
  /// `records`, and those of later calls, must outlive the object. They are read once, on so many threads, and asked
  /// for again by hash_candidate_files(). Returns the number of the data set, from 0.
  size_t add(const io::Records& records, int64_t workers, const std::function<void(int64_t done)>& on_progress = {});

  /// Reads the files that may be the same. What follows is to be asked after it.
  void hash_candidate_files(int64_t workers);

  /// Files of a data set, each once, by its first record.
  std::vector<MissingFile> find_missing_files(size_t dataset) const;
  /// A record's pictures and videos: the same number for the same file or carried content.
  const std::vector<uint64_t>& get_media_keys(size_t dataset, int64_t record) const {
    return fingerprints_[dataset][static_cast<size_t>(record)].media;
  }
  /// Files of a record's masks: the same number for the same path or carried content, and the same value in it.
  const std::vector<uint64_t>& get_mask_keys(size_t dataset, int64_t record) const {
    return fingerprints_[dataset][static_cast<size_t>(record)].masks;
  }
  /// Pictures and videos that the records of all sets name or carry: different files, and different contents of those
  /// that are carried.
  int64_t media() const { return std::ssize(media_); }
  /// Of a set, the records that say the same: two at least in each group, ascending, groups by their first.
  std::vector<std::vector<int64_t>> find_duplicate_records(size_t dataset) const;
  /// Different files that hold the same: their paths, in each group and the groups in order of the alphabet.
  std::vector<std::vector<std::string>> duplicate_files() const;
  /// The records of a set that say what one of another set says: with the first such.
  std::map<int64_t, int64_t> find_shared_records(size_t dataset, size_t other_dataset) const;
  /// The records of a set with a picture or video that a record of another set has too.
  std::vector<int64_t> find_records_sharing_media(size_t dataset, size_t other_dataset) const;
  /// Whether a record of a set says whom its media show (Record::subjects).
  bool has_subjects(size_t dataset) const;
  /// Who is in a set and in another one, in the order of the set.
  SharedSubjects find_shared_subjects(size_t dataset, size_t other_dataset) const;

 private:
  struct Fingerprint {
    bool is_usable = false;
    uint64_t text = 0;               ///< of the conversation
    std::vector<uint64_t> media;     ///< keys of media_, in the record's order
    std::vector<uint64_t> masks;     ///< of files, in the record's order
    std::vector<uint64_t> subjects;  ///< hashes of their names
  };
  struct MediaEntry {
    size_t dataset = 0;  ///< where it was met, and which of that record's media it is
    int64_t record = 0;
    int64_t media_index = 0;
    int64_t bytes = 0;                     ///< 0: not compared
    std::optional<uint64_t> head = {};     ///< hash of its beginning, where it was read
    std::optional<uint64_t> content = {};  ///< of all of it, where another has its size and beginning
    std::string problem = {};
  };

  Fingerprint make_fingerprint(const io::Record& record, size_t dataset, int64_t index);
  uint64_t add_media(const io::MediaRef& medium, MediaEntry media_entry);
  uint64_t get_content_hash(uint64_t medium) const;
  uint64_t compute_record_key(const Fingerprint& fingerprint) const;
  std::string find_path(const MediaEntry& medium) const;

  std::vector<const io::Records*> datasets_;
  std::vector<std::vector<Fingerprint>> fingerprints_;  // of each set, by index
  std::mutex mutex_;                                    // guards what follows while records are read
  std::unordered_map<uint64_t, MediaEntry> media_;
};

}  // namespace vlmtrain::data
