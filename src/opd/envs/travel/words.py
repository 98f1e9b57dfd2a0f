"""The word lists from which the generator makes names, each entry in English and in Chinese at the same position."""

from typing import NamedTuple


class Word(NamedTuple):
    """One word in both languages."""

    en: str
    zh: str


def _words(text: str) -> tuple[Word, ...]:
    pairs = (entry.partition("=") for entry in text.split(","))
    return tuple(Word(en.strip(), zh.strip()) for en, _, zh in pairs)


# Invented: where a name happens to be a real city's, nothing else about it is, so that no memory answers for the database.
CITY_HEADS = _words(
    "An=安, Bai=白, Bei=北, Chang=长, Chun=春, Da=大, Dan=丹, Dong=东, Feng=凤, Fu=福, Gao=高, Guang=广, Hai=海, He=鹤, "
    "Hong=红, Hua=华, Jin=金, Jing=静, Lan=兰, Lin=林, Long=龙, Mei=梅, Ming=明, Nan=南, Ning=宁, Ping=平, Qing=青, "
    "Rong=荣, Shan=善, Song=松, Tai=泰, Tian=天, Wan=万, Xi=西, Xin=新, Yan=燕, Yong=永, Yun=云, Zhen=镇, Zhong=中"
)
CITY_TAILS = _words(
    "zhou=州, cheng=城, jiang=江, hu=湖, shan=山, yang=阳, quan=泉, ling=岭, he=河, kou=口, tan=滩, yuan=源, pu=浦, an=岸"
)
PLACE_HEADS = _words(
    "Jade=翡翠, Lotus=莲花, Bamboo=竹林, Crane=仙鹤, Dragon=龙吟, Phoenix=凤鸣, Maple=枫叶, Pearl=明珠, River=江畔, "
    "Cloud=云端, Moon=明月, Sunrise=晨曦, Plum=梅园, Orchid=兰亭, Willow=柳岸, Amber=琥珀, Coral=珊瑚, Silver=银杏, "
    "Golden=金桂, Crystal=水晶, Harbor=港湾, Garden=花园, Lantern=灯笼, Peony=牡丹, Pine=青松, Spring=清泉, Swallow=飞燕, "
    "Summit=云峰, Tea=茶香, Velvet=锦绣, West Gate=西门, East Gate=东门, Old Town=古城, Lakeside=湖滨, Star=星空, Wind=清风"
)
HOTEL_TAILS = _words("Hotel=酒店, Inn=客栈, Lodge=山庄, Residence=公寓, Palace=宫酒店, Hostel=青年旅舍")
RESTAURANT_TAILS = _words("Kitchen=小厨, House=饭庄, Table=餐厅, Bistro=小馆, Tavern=酒家, Pavilion=阁")
ATTRACTION_KINDS = _words(
    "Temple=寺, Museum=博物馆, Park=公园, Tower=塔, Gallery=美术馆, Market=集市, Bridge=桥, Zoo=动物园, Theater=剧院, Lake=湖"
)
CUISINES = _words(
    "noodles=面食, hotpot=火锅, seafood=海鲜, vegetarian=素食, barbecue=烧烤, dim sum=点心, Sichuan=川菜, Cantonese=粤菜"
)
HOTEL_FEATURES = _words("breakfast=早餐, parking=停车场, gym=健身房, pool=泳池, pets=可带宠物, laundry=洗衣")
