// Replicas that take turns on one thread: a run() is one step of all.

#include "tutti/train/fit/detail/fit.h"

namespace tutti::detail {
namespace {

class InTurn final : public Pace {
 public:
  explicit InTurn(Fit& fit) : fit_(fit) {}

  std::optional<Totals> run(const Epoch& epoch, std::vector<Totals>& each) override {
    for (int64_t s = epoch.first_step; s < epoch.steps && !fit_.ends(each[0]); ++s) {
      fit_.strategy().run([&](ReplicaContext& replica) {
        fit_.step(replica, fit_.forward(replica), epoch, s,
                  each[static_cast<size_t>(replica.local_rank())]);
      });
      for (const auto& totals : each) {
        if (each[0].bad_step < 0) each[0].bad_step = totals.bad_step;
      }
      if (fit_.leaves_out(each[0])) break;
      fit_.after_step_of_all(epoch, s, each[0]);
      fit_.stepped(epoch, s, each[0]);
      fit_.save_between(epoch, each);
    }
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
