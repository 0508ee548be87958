// Replicas that take turns on one thread: a run() is one step of all.

#include "tutti/train/fit/detail/fit.h"

namespace tutti::detail {
namespace {

class InTurn final : public Pace {
 public:
  explicit InTurn(Fit& fit) : fit_(fit) {}

  std::optional<Totals> run(Epoch& epoch, std::vector<Totals>& each) override {
    std::vector<std::unique_ptr<Tally>> tallies(each.size());
    for (int64_t s = epoch.first_step; s < epoch.steps && !fit_.ends(each[0]); ++s) {
      fit_.before_steps(epoch, s);
      const bool pauses = fit_.steps_until_pause(epoch, s) == 1;
      const int64_t before = fit_.version();
      fit_.strategy().run([&](ReplicaContext& replica) {
        const auto local = static_cast<size_t>(replica.local_rank());
        if (!tallies[local]) {
          fit_.require_here(replica);
          tallies[local] = std::make_unique<Tally>(replica, each[local]);
        }
        fit_.step(replica, fit_.forward(replica), epoch, s, *tallies[local]);
      });
      // No update where one was due: the step was left out, for what is still on its way.
      fit_.agree_in_turn(tallies, s, pauses || fit_.version() == before);
      if (fit_.leaves_out(each[0])) break;
      fit_.after_step_of_all(epoch, s, each[0]);
      fit_.stepped(epoch, s, each[0]);
      if (fit_.ends(each[0])) fit_.agree_in_turn(tallies, s, /*wait=*/true);
      fit_.save_between(epoch, each);
    }
    if (tallies[0]) fit_.agree_in_turn(tallies, epoch.steps - 1, /*wait=*/true);
    fit_.take_back_left_out(epoch, each[0]);
    fit_.raise(epoch, each[0]);
    return sum_over_world(fit_.strategy(), fit_.goals(),
                          PerReplica<Totals>(each, epoch.world->first_rank));
  }

 private:
  Fit& fit_;
};

}  // namespace

std::unique_ptr<Pace> make_in_turn(Fit& fit) { return std::make_unique<InTurn>(fit); }

}  // namespace tutti::detail
