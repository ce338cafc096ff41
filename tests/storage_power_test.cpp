// Power loss: from what a run did to its files, every state is built that a disk may be left in
// when the power goes, as far as the syncs allow, and the reader is run on it.
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "tests/faults/harness.h"

namespace penstock::io {
namespace {

using namespace faults;

// ---- a disk that forgets what was not synced

struct Node;
using NodePtr = std::shared_ptr<Node>;

// A file or folder: what is on the disk for certain, and what has been done since.
struct Node {
  bool folder = false;
  // Of a file.
  std::string durable;
  std::string now;
  // Of a folder: names as they are on the disk and as programs see them, and the changes between.
  // One change is atomic: a rename takes one name away and gives another.
  struct Change {
    std::string gone;
    std::string come;
    NodePtr node;
  };
  std::map<std::string, NodePtr> entries_durable;
  std::map<std::string, NodePtr> entries;
  std::vector<Change> changes;

  static void apply(std::map<std::string, NodePtr>& to, const Change& c) {
    if (!c.gone.empty()) {
      to.erase(c.gone);
    }
    if (!c.come.empty()) {
      to[c.come] = c.node;
    }
  }
  void change(const Change& c) {
    apply(entries, c);
    changes.push_back(c);
  }
  void sync() {
    durable = now;
    entries_durable = entries;
    changes.clear();
  }
};

// Everything on it is durable.
NodePtr load(const fs::path& path) {
  auto node = std::make_shared<Node>();
  node->folder = fs::is_directory(path);
  if (!node->folder) {
    node->now = node->durable = contents_of(path.string());
    return node;
  }
  for (const auto& entry : fs::directory_iterator(path)) {
    node->entries[entry.path().filename().string()] = load(entry.path());
  }
  node->entries_durable = node->entries;
  return node;
}

// What survives of the changes since the last sync.
enum class Loss {
  kAll,       // nothing of them
  kData,      // names come through, contents do not
  kZeros,     // names and sizes come through, contents are zeros
  kNames,     // contents come through, names do not
  kAnything,  // any of the changes, any length of the contents
};

class Disk {
 public:
  Disk(const std::string& root, bool obey_syncs)
      : root_(root), obey_syncs_(obey_syncs), top_(load(root)) {}

  // Does the next operation of the log; false at its end.
  bool step(std::string_view& log) {
    if (log.size() < sizeof(Entry)) {
      return false;
    }
    Entry entry;
    std::memcpy(&entry, log.data(), sizeof entry);
    log.remove_prefix(sizeof entry);
    const std::string path(log.substr(0, std::size_t(entry.path)));
    log.remove_prefix(path.size());
    std::string_view extra;
    if (entry.done == Done::kWrite || entry.done == Done::kRename) {
      extra = log.substr(0, std::size_t(entry.extra));
      log.remove_prefix(extra.size());
    }
    apply(entry, path, extra);
    return true;
  }

  // The highest step whose commit was made durable: nothing may lose it.
  i64 committed() const { return committed_; }

  // Writes a state that power loss at this moment may leave to `to`.
  template <class Random>
  void lose_power(const std::string& to, Loss loss, Random& random) const {
    write(*top_, to, loss, random);
  }

 private:
  NodePtr find(const std::string& path) const {
    NodePtr node = top_;
    for (const fs::path& part : fs::path(path).lexically_relative(root_)) {
      if (part != "." && node) {
        const auto found = node->entries.find(part.string());
        node = found == node->entries.end() ? nullptr : found->second;
      }
    }
    return node;
  }

  void apply(const Entry& entry, const std::string& path, std::string_view extra) {
    const NodePtr parent = path == root_ ? nullptr : find(parent_of(path));
    const std::string name = fs::path(path).filename().string();
    const NodePtr node = find(path);
    switch (entry.done) {
      case Done::kCreate:
      case Done::kMkdir:
        if (!node) {
          auto made = std::make_shared<Node>();
          made->folder = entry.done == Done::kMkdir;
          parent->change({.gone = {}, .come = name, .node = made});
        }
        break;
      case Done::kWrite: node->now += extra; break;
      case Done::kTruncate: node->now.resize(std::size_t(entry.extra)); break;
      case Done::kSync:
        if (obey_syncs_ || node->folder) {
          node->sync();
        }
        if (node->folder && fs::path(path).filename() == "checkpoints") {
          committed_ = renamed_;
        }
        break;
      case Done::kRename: {
        const std::string to = fs::path(extra).filename().string();
        parent->change({.gone = name, .come = to, .node = node});
        if (is_checkpoint_name(to)) {
          renamed_ = std::atoll(to.c_str() + 5);
        }
        break;
      }
      case Done::kUnlink:
      case Done::kRmdir: parent->change({.gone = name, .come = {}, .node = {}}); break;
    }
  }

  template <class Random>
  static void write(const Node& node, const std::string& to, Loss loss, Random& random) {
    const bool any = loss == Loss::kAnything;
    if (!node.folder) {
      const std::string& now = node.now;
      std::string text = node.durable;
      if (loss == Loss::kNames || (any && random() % 2 == 0)) {
        text = now;
      } else if (loss == Loss::kZeros || (any && random() % 2 == 0)) {
        text.resize(std::max(text.size(), now.size()), '\0');
      } else if (any && now.size() > text.size()) {
        text = now.substr(0, text.size() + random() % (now.size() - text.size() + 1));
      }
      put_file(to, text);
      return;
    }
    fs::create_directory(to);
    auto entries = node.entries_durable;
    for (const Node::Change& change : node.changes) {
      if (loss == Loss::kData || loss == Loss::kZeros || (any && random() % 2 == 0)) {
        Node::apply(entries, change);
      }
    }
    for (const auto& [name, child] : entries) {
      write(*child, to + "/" + name, loss, random);
    }
  }

  std::string root_;
  bool obey_syncs_;
  NodePtr top_;
  i64 renamed_ = kBefore;
  i64 committed_ = kBefore;
};

// ---- tests

class StoragePower : public ::testing::Test {
 protected:
  void SetUp() override {
    make_run(base_);
    fs::copy(base_, run_, fs::copy_options::recursive);
    Shim shim(folder_ / "report");
    const Ended ended = shim.run(run_, {.action = Action::kNone});
    ASSERT_EQ(ended.code(), 0) << ended.text;
    log_ = shim.log();
    // The disk begins as the run found it, under the path that the run had.
    fs::remove_all(run_);
    fs::copy(base_, run_, fs::copy_options::recursive);
  }

  // Calls `check` for every state; a new folder each time.
  template <class Check>
  int for_each_state(bool obey_syncs, Check check) {
    std::mt19937 random(7);
    Disk disk(run_, obey_syncs);
    std::string_view log = log_;
    int states = 0;
    do {
      for (const Loss loss : {Loss::kAll, Loss::kData, Loss::kZeros, Loss::kNames, Loss::kAnything,
                              Loss::kAnything, Loss::kAnything}) {
        fs::remove_all(left_);
        disk.lose_power(left_, loss, random);
        SCOPED_TRACE(
            format("state {}, loss {}, {} bytes of the log left", states, int(loss), log.size()));
        check(disk.committed());
        ++states;
      }
    } while (!HasFailure() && disk.step(log));
    return states;
  }

  TestFolder folder_{TestFolder::Where::kMemory};
  std::string base_ = folder_ / "base";
  std::string run_ = folder_ / "run";
  std::string left_ = folder_ / "left";
  std::string log_;
};

TEST_F(StoragePower, WhatWasCommittedIsThereWhateverTheDiskForgot) {
  i64 last = 0;
  int done = 0;
  const int states = for_each_state(true, [&](i64 committed) {
    expect_sound(left_, committed);
    last = committed;
    if (++done % 25 == 0) {
      expect_goes_on(left_);
    }
  });
  EXPECT_EQ(last, kAfter);
  EXPECT_GT(states, 400);
}

TEST_F(StoragePower, WithoutTheSyncsOfFilesItWouldNotBe) {
  // That the states above are hard ones: the same log, with the files' syncs taken for nothing.
  int bad = 0;
  for_each_state(false, [&](i64) {
    const CheckpointScan scan = scan_checkpoints(left_ + "/checkpoints");
    bool whole = scan.damaged.empty();
    for (const FoundCheckpoint& found : scan.valid) {
      try {
        const Checkpoint checkpoint(found.path);
      } catch (const StorageError&) {
        whole = false;
      }
    }
    bad += whole ? 0 : 1;
  });
  EXPECT_GT(bad, 20);
}

}  // namespace
}  // namespace penstock::io
