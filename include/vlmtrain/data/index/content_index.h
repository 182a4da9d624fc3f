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

/// A media file that cannot be opened or is not a regular file.
struct MissingFile {
  std::string path;
  std::string reason;              ///< the system's message, such as "No such file or directory"
  int64_t first_record_index = 0;  ///< index of the first record that names it
  int64_t num_records = 0;         ///< number of records that name it
};

/// The subjects, such as patients, that two data sets have in common.
struct SharedSubjects {
  std::vector<std::string> subject_names;  ///< in the order of the first data set
  std::vector<int64_t> record_indices;     ///< in the first data set, ascending
};

/// An index of the contents of several data sets that finds duplicates. Stores 64-bit hashes, about
/// a hundred bytes for each record and file. Not thread-safe.
///
/// Two records are duplicates if their conversations are equal and their media have the same
/// contents; ids, tasks and file names are ignored. A file is read only if another file has the
/// same size, and in full only if their first bytes are equal too. Folders of video frames are
/// compared by name. Unusable records are ignored.
class ContentIndex {
 public:
  /// Adds a data set and returns its number, from 0. Reads all records on `workers` threads. Calls
  /// `on_progress`, if set, on the caller's thread from time to time with the number of records
  /// read. Rethrows exceptions of `records`, which must outlive the object.
  size_t add_dataset(const io::Records& records, int64_t workers,
                     const std::function<void(int64_t num_done)>& on_progress = {});

  /// Reads the files that may have equal contents, on `workers` threads.
  void hash_possible_duplicates(int64_t workers);

  // The following require that hash_possible_duplicates() was called after the last add_dataset().

  /// Returns the missing files of a data set, sorted by their first record.
  std::vector<MissingFile> find_missing_files(size_t dataset_index) const;
  /// Returns keys of a record's media. Equal keys mean the same file or the same embedded content.
  /// The reference is valid until the next add_dataset().
  const std::vector<uint64_t>& get_media_keys(size_t dataset_index, int64_t record_index) const {
    return fingerprints_[dataset_index][static_cast<size_t>(record_index)].media_keys;
  }
  /// Returns keys of a record's mask files. Equal keys mean the same path or embedded content, and
  /// the same value of the mask in it. The reference is valid until the next add_dataset().
  const std::vector<uint64_t>& get_mask_keys(size_t dataset_index, int64_t record_index) const {
    return fingerprints_[dataset_index][static_cast<size_t>(record_index)].mask_keys;
  }
  /// Returns the number of different media in all data sets: files and embedded contents.
  int64_t num_distinct_media() const { return std::ssize(media_); }
  /// Returns the groups of duplicate records in a data set. Groups and their records are ascending.
  std::vector<std::vector<int64_t>> find_duplicate_records(size_t dataset_index) const;
  /// Returns the groups of files with equal contents. Groups and their paths are sorted.
  std::vector<std::vector<std::string>> find_duplicate_files() const;
  /// Returns the records of a data set that duplicate a record of another data set, with the first
  /// such record as the value.
  std::map<int64_t, int64_t> find_shared_records(size_t dataset_index, size_t other_dataset_index) const;
  /// Returns the records of a data set with an image, video or volume that is also in another data
  /// set.
  std::vector<int64_t> find_records_sharing_media(size_t dataset_index, size_t other_dataset_index) const;
  /// Returns whether any record of a data set names subjects (io::Record::subject_ids).
  bool has_subjects(size_t dataset_index) const;
  /// Returns the subjects of a data set that are also in another data set, in the order of the
  /// first.
  SharedSubjects find_shared_subjects(size_t dataset_index, size_t other_dataset_index) const;

 private:
  /// The hashes of a record.
  struct RecordFingerprint {
    bool is_usable = false;
    uint64_t conversation_hash = 0;        ///< of turns and masks, not of media contents
    std::vector<uint64_t> media_keys;      ///< keys of media_, in the record's order
    std::vector<uint64_t> mask_keys;       ///< keys of mask files, in the record's order
    std::vector<uint64_t> subject_hashes;  ///< by index in io::Record::subject_ids
  };
  /// A media file or embedded content.
  struct MediaEntry {
    size_t dataset_index = 0;                   ///< data set of the first occurrence
    int64_t record_index = 0;                   ///< record of the first occurrence
    int64_t media_index = 0;                    ///< index among the record's media
    int64_t bytes = 0;                          ///< size; 0 if it is not compared by content
    std::optional<uint64_t> head_hash = {};     ///< hash of the first bytes; set if another file has this size
    std::optional<uint64_t> content_hash = {};  ///< hash of all bytes; set if another file has this size and head
    std::string problem = {};                   ///< the system's message if the file is missing
  };

  /// Hashes a record and adds its media to media_.
  RecordFingerprint make_fingerprint(const io::Record& record, size_t dataset_index, int64_t index);
  /// Adds a medium unless media_ has it, and returns its key in media_.
  uint64_t find_or_add_medium(const io::MediaRef& medium, MediaEntry media_entry);
  /// Returns a hash that media with equal contents share. `media_key` is a key of media_.
  uint64_t get_content_hash(uint64_t media_key) const;
  /// Returns a hash that duplicate records share.
  uint64_t compute_record_key(const RecordFingerprint& fingerprint) const;
  /// Returns the path of a file; reads the record that names it.
  std::string read_media_path(const MediaEntry& medium) const;

  std::vector<const io::Records*> datasets_;
  std::vector<std::vector<RecordFingerprint>> fingerprints_;  // by data set and record
  std::mutex mutex_;                                          // guards media_ in add_dataset()
  std::unordered_map<uint64_t, MediaEntry> media_;            // by a hash of the path or of the embedded content
};

}  // namespace vlmtrain::data
