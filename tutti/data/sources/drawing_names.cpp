// Names: of the classes of Kaggle's challenge, of countries.
#include "tutti/base/typed.h"
#include "tutti/data/sources/detail/drawing.h"
#include "tutti/data/sources/strokes.h"

namespace tutti::data {

const std::vector<std::string>& kaggle_classes() {
  // The 345 of Google's but "aircraft carrier", "knife", "lighter", "rifle" and "syringe".
  constexpr std::string_view kNames =
      "The Eiffel Tower,The Great Wall of China,The Mona Lisa,airplane,alarm clock,"
      "ambulance,angel,animal migration,ant,anvil,apple,arm,asparagus,axe,backpack,banana,"
      "bandage,barn,baseball,baseball bat,basket,basketball,bat,bathtub,beach,bear,beard,"
      "bed,bee,belt,bench,bicycle,binoculars,bird,birthday cake,blackberry,blueberry,book,"
      "boomerang,bottlecap,bowtie,bracelet,brain,bread,bridge,broccoli,broom,bucket,"
      "bulldozer,bus,bush,butterfly,cactus,cake,calculator,calendar,camel,camera,"
      "camouflage,campfire,candle,cannon,canoe,car,carrot,castle,cat,ceiling fan,"
      "cell phone,cello,chair,chandelier,church,circle,clarinet,clock,cloud,coffee cup,"
      "compass,computer,cookie,cooler,couch,cow,crab,crayon,crocodile,crown,cruise ship,"
      "cup,diamond,dishwasher,diving board,dog,dolphin,donut,door,dragon,dresser,drill,"
      "drums,duck,dumbbell,ear,elbow,elephant,envelope,eraser,eye,eyeglasses,face,fan,"
      "feather,fence,finger,fire hydrant,fireplace,firetruck,fish,flamingo,flashlight,"
      "flip flops,floor lamp,flower,flying saucer,foot,fork,frog,frying pan,garden,"
      "garden hose,giraffe,goatee,golf club,grapes,grass,guitar,hamburger,hammer,hand,harp,"
      "hat,headphones,hedgehog,helicopter,helmet,hexagon,hockey puck,hockey stick,horse,"
      "hospital,hot air balloon,hot dog,hot tub,hourglass,house,house plant,hurricane,"
      "ice cream,jacket,jail,kangaroo,key,keyboard,knee,ladder,lantern,laptop,leaf,leg,"
      "light bulb,lighthouse,lightning,line,lion,lipstick,lobster,lollipop,mailbox,map,"
      "marker,matches,megaphone,mermaid,microphone,microwave,monkey,moon,mosquito,"
      "motorbike,mountain,mouse,moustache,mouth,mug,mushroom,nail,necklace,nose,ocean,"
      "octagon,octopus,onion,oven,owl,paint can,paintbrush,palm tree,panda,pants,"
      "paper clip,parachute,parrot,passport,peanut,pear,peas,pencil,penguin,piano,"
      "pickup truck,picture frame,pig,pillow,pineapple,pizza,pliers,police car,pond,pool,"
      "popsicle,postcard,potato,power outlet,purse,rabbit,raccoon,radio,rain,rainbow,rake,"
      "remote control,rhinoceros,river,roller coaster,rollerskates,sailboat,sandwich,saw,"
      "saxophone,school bus,scissors,scorpion,screwdriver,sea turtle,see saw,shark,sheep,"
      "shoe,shorts,shovel,sink,skateboard,skull,skyscraper,sleeping bag,smiley face,snail,"
      "snake,snorkel,snowflake,snowman,soccer ball,sock,speedboat,spider,spoon,spreadsheet,"
      "square,squiggle,squirrel,stairs,star,steak,stereo,stethoscope,stitches,stop sign,"
      "stove,strawberry,streetlight,string bean,submarine,suitcase,sun,swan,sweater,"
      "swing set,sword,t-shirt,table,teapot,teddy-bear,telephone,television,tennis racquet,"
      "tent,tiger,toaster,toe,toilet,tooth,toothbrush,toothpaste,tornado,tractor,"
      "traffic light,train,tree,triangle,trombone,truck,trumpet,umbrella,underwear,van,"
      "vase,violin,washing machine,watermelon,waterslide,whale,wheel,windmill,wine bottle,"
      "wine glass,wristwatch,yoga,zebra,zigzag";
  static const std::vector<std::string> kClasses = [&] {
    const std::vector<std::string_view> names = parts_of(kNames, ',');
    return std::vector<std::string>(names.begin(), names.end());
  }();
  return kClasses;
}

bool detail::is_country(std::string_view code) {
  // ISO 3166-1 as of 2017, when the drawings were made; AN and XK, which it has not or no more; ZZ,
  // of players whose country is unknown.
  constexpr std::string_view kCodes =
      "AD AE AF AG AI AL AM AN AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM "
      "BN BO BQ BR BS BT BV BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY "
      "CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO FR GA GB GD GE GF GG GH GI "
      "GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE "
      "JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD "
      "ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO "
      "NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC "
      "SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN "
      "TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS XK YE YT ZA ZM ZW ZZ";
  if (code.size() != 2) return false;
  const size_t at = kCodes.find(code);
  return at != std::string_view::npos && at % 3 == 0;
}

}  // namespace tutti::data
